package config

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/caarlos0/env/v11"
	"github.com/spf13/pflag"
)

// Dev are the settings of `broker dev`. Each has a flag and an environment variable; the flag goes before.
type Dev struct {
	// Listen is where HTTP is served, host:port, default 127.0.0.1:8080.
	Listen string `env:"SLUICE_LISTEN"`
	// Partner is where the fake partner is served, host:port, default 127.0.0.1:8081.
	Partner string `env:"SLUICE_PARTNER"`
	// Policies is the policy file; empty: samples that are built in.
	Policies string `env:"SLUICE_POLICIES"`
	// LogLevel is debug, info, warn (default) or error.
	LogLevel slog.Level `env:"SLUICE_LOG_LEVEL"`
}

// ReadDev gives the defaults with what the environment, as os.Environ has it, says otherwise. Flags come afterwards, by
// RegisterFlags. The error names every variable that cannot be read.
func ReadDev(environ []string) (Dev, error) {
	s := Dev{Listen: "127.0.0.1:8080", Partner: "127.0.0.1:8081", LogLevel: slog.LevelWarn}
	if err := env.ParseWithOptions(&s, env.Options{Environment: env.ToMap(environ)}); err != nil {
		return Dev{}, fmt.Errorf("environment: %w", variables(s, err))
	}
	return s, nil
}

// RegisterFlags adds a flag for each setting. What the settings hold before is what a flag that is not given leaves.
func (s *Dev) RegisterFlags(fs *pflag.FlagSet) {
	fs.StringVar(&s.Listen, "listen", s.Listen, "loopback address to serve HTTP on [SLUICE_LISTEN]")
	fs.StringVar(&s.Partner, "partner", s.Partner, "loopback address of the fake partner [SLUICE_PARTNER]")
	fs.StringVar(&s.Policies, "policies", s.Policies, "policy file instead of the samples [SLUICE_POLICIES]")
	fs.Var(&level{&s.LogLevel}, "log-level", "debug, info, warn or error [SLUICE_LOG_LEVEL]")
}

// Validate returns every setting that is out of its bounds, by the name of its flag.
func (s *Dev) Validate() error {
	var errs []error
	for _, l := range []struct{ flag, address string }{{"listen", s.Listen}, {"partner", s.Partner}} {
		if err := checkListen(l.address); err != nil {
			errs = append(errs, fmt.Errorf("--%s: %w", l.flag, err))
		}
	}
	return errors.Join(errs...)
}
