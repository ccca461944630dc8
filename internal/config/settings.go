package config

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"reflect"
	"strconv"
	"time"

	"github.com/caarlos0/env/v11"
	"github.com/spf13/pflag"
)

// Serve are the settings of `broker serve`. Each has a flag and an environment variable; the flag goes before.
type Serve struct {
	// Listen is where HTTP is served, host:port, default 127.0.0.1:8080.
	Listen string `env:"SLUICE_LISTEN"`
	// RedisURL is where the state is; see RedisClient. Default redis://127.0.0.1:6379.
	RedisURL string `env:"SLUICE_REDIS_URL"`
	// Policies is the policy file; empty: policies are read from Redis only.
	Policies string `env:"SLUICE_POLICIES"`
	// MaxInFlight is how many requests are worked on at the same time, 1 to 1000000, default 10000; more are refused
	// as overloaded.
	MaxInFlight int `env:"SLUICE_MAX_IN_FLIGHT"`
	// LogLevel is debug, info (default), warn or error.
	LogLevel slog.Level `env:"SLUICE_LOG_LEVEL"`
	// ShutdownTimeout is how long requests in flight have after SIGTERM, 0 to 1h, default 15s.
	ShutdownTimeout time.Duration `env:"SLUICE_SHUTDOWN_TIMEOUT"`
	// DrainDelay is how long asks are still served after SIGTERM, while /readyz fails already, so that load balancers
	// notice; 0 to 1m, default 1s, a part of ShutdownTimeout.
	DrainDelay time.Duration `env:"SLUICE_DRAIN_DELAY"`
	// DependencyLabel keeps the label "dependency" on metrics, default true.
	DependencyLabel bool `env:"SLUICE_DEPENDENCY_LABEL"`
}

const defaultRedisURL = "redis://127.0.0.1:6379"

// ReadServe gives the defaults with what the environment, as os.Environ has it, says otherwise. Flags come afterwards,
// by RegisterFlags. The error names every variable that cannot be read.
func ReadServe(environ []string) (Serve, error) {
	s := Serve{
		Listen:          "127.0.0.1:8080",
		RedisURL:        defaultRedisURL,
		MaxInFlight:     10_000,
		LogLevel:        slog.LevelInfo,
		ShutdownTimeout: 15 * time.Second,
		DrainDelay:      time.Second,
		DependencyLabel: true,
	}
	if err := env.ParseWithOptions(&s, env.Options{Environment: env.ToMap(environ)}); err != nil {
		return Serve{}, fmt.Errorf("environment: %w", variables(s, err))
	}
	return s, nil
}

// variables names the environment's variables where the library names the struct's fields.
func variables(settings any, err error) error {
	all, ok := errors.AsType[env.AggregateError](err)
	if !ok {
		return err
	}
	var named []error
	for _, one := range all.Errors {
		if p, ok := errors.AsType[env.ParseError](one); ok {
			if f, ok := reflect.TypeOf(settings).FieldByName(p.Name); ok {
				one = fmt.Errorf("%s must be %s: %w", f.Tag.Get("env"), described(f.Type), p.Err)
			}
		}
		named = append(named, one)
	}
	return errors.Join(named...)
}

// described says in words what a variable of the type holds.
func described(t reflect.Type) string {
	switch t {
	case reflect.TypeFor[time.Duration]():
		return "a duration such as 1.5s"
	case reflect.TypeFor[slog.Level]():
		return "debug, info, warn or error"
	case reflect.TypeFor[bool]():
		return "true or false"
	case reflect.TypeFor[int]():
		return "a whole number"
	}
	return "a " + t.String()
}

// RegisterFlags adds a flag for each setting. What the settings hold before is what a flag that is not given leaves.
func (s *Serve) RegisterFlags(fs *pflag.FlagSet) {
	fs.StringVar(&s.Listen, "listen", s.Listen, "address to serve HTTP on [SLUICE_LISTEN]")
	fs.StringVar(&s.RedisURL, "redis-url", s.RedisURL,
		"redis://, rediss://, redis+sentinel:// or redis+cluster:// [SLUICE_REDIS_URL]")
	fs.Lookup("redis-url").DefValue = defaultRedisURL // the environment's may have a password, and help would show it
	fs.StringVar(&s.Policies, "policies", s.Policies, "policy file to install and watch [SLUICE_POLICIES]")
	fs.IntVar(&s.MaxInFlight, "max-in-flight", s.MaxInFlight, "requests worked on at the same time [SLUICE_MAX_IN_FLIGHT]")
	fs.Var(&level{&s.LogLevel}, "log-level", "debug, info, warn or error [SLUICE_LOG_LEVEL]")
	fs.DurationVar(&s.ShutdownTimeout, "shutdown-timeout", s.ShutdownTimeout,
		"time that requests in flight have after SIGTERM [SLUICE_SHUTDOWN_TIMEOUT]")
	fs.DurationVar(&s.DrainDelay, "drain-delay", s.DrainDelay,
		"time that asks are still served after SIGTERM while /readyz fails [SLUICE_DRAIN_DELAY]")
	fs.BoolVar(&s.DependencyLabel, "dependency-label", s.DependencyLabel,
		"label metrics by dependency [SLUICE_DEPENDENCY_LABEL]")
}

// Validate returns every setting that is out of its bounds, by the name of its flag.
func (s *Serve) Validate() error {
	var errs []error
	bad := func(flag, format string, args ...any) {
		errs = append(errs, fmt.Errorf("--"+flag+": "+format, args...))
	}
	if err := checkListen(s.Listen); err != nil {
		bad("listen", "%w", err)
	}
	if _, err := parseRedisURL(s.RedisURL); err != nil {
		bad("redis-url", "%w", err)
	}
	if s.MaxInFlight < 1 || s.MaxInFlight > 1_000_000 {
		bad("max-in-flight", "is %d; allowed are 1 to 1000000", s.MaxInFlight)
	}
	if s.ShutdownTimeout < 0 || s.ShutdownTimeout > time.Hour {
		bad("shutdown-timeout", "is %s; allowed are 0s to 1h", s.ShutdownTimeout)
	}
	if s.DrainDelay < 0 || s.DrainDelay > time.Minute {
		bad("drain-delay", "is %s; allowed are 0s to 1m", s.DrainDelay)
	}
	return errors.Join(errs...)
}

// checkListen says what is wrong with an address to listen on.
func checkListen(address string) error {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("%q is no host:port, such as 127.0.0.1:8080", address)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("port %q is no number from 0 to 65535", port)
	}
	return nil
}

// level is a slog.Level as a flag.
type level struct{ *slog.Level }

// Set reads debug, info, warn or error.
func (l *level) Set(text string) error {
	if err := l.UnmarshalText([]byte(text)); err != nil {
		return fmt.Errorf("%q is no level; allowed are debug, info, warn, error", text)
	}
	return nil
}

// Type names the flag's type in help.
func (*level) Type() string { return "level" }
