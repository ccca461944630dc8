package config_test

import (
	"log/slog"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/sluicehq/sluice/admission"
	"github.com/sluicehq/sluice/internal/config"
)

func TestDevSettings(t *testing.T) {
	t.Parallel()
	s, err := config.ReadDev(nil)
	require.NoError(t, err)
	require.Equal(t, config.Dev{Listen: "127.0.0.1:8080", Partner: "127.0.0.1:8081", LogLevel: slog.LevelWarn}, s)
	require.NoError(t, s.Validate())

	s, err = config.ReadDev([]string{"SLUICE_LISTEN=127.0.0.1:1", "SLUICE_PARTNER=127.0.0.1:2", "SLUICE_POLICIES=p", "SLUICE_LOG_LEVEL=debug"})
	require.NoError(t, err)
	fs := pflag.NewFlagSet("dev", pflag.ContinueOnError)
	s.RegisterFlags(fs)
	require.NoError(t, fs.Parse([]string{"--partner", "127.0.0.1:3"}))
	require.Equal(t, config.Dev{Listen: "127.0.0.1:1", Partner: "127.0.0.1:3", Policies: "p", LogLevel: slog.LevelDebug}, s)

	_, err = config.ReadDev([]string{"SLUICE_LOG_LEVEL=loud"})
	require.ErrorContains(t, err, "SLUICE_LOG_LEVEL")
	s = config.Dev{Listen: "8080", Partner: "h:http"}
	require.ErrorContains(t, s.Validate(), "--listen")
	require.ErrorContains(t, s.Validate(), "--partner")
}

// TestChecksReportPlaces: what a program cannot do is reported where it stands, and only in a file without mistakes.
func TestChecksReportPlaces(t *testing.T) {
	t.Parallel()
	check := func(*admission.Document) []admission.Problem {
		return []admission.Problem{{Path: "dependencies.demo.limits[0].capacity", Message: "is not for us"}}
	}
	const good = "dependencies:\n  demo:\n    limits:\n    - {name: rate, kind: token_bucket, capacity: 5, refill: 1/s}\n"
	_, err := config.ParsePolicies("p.yaml", []byte(good), check)
	require.EqualError(t, err, "p.yaml:4:50: dependencies.demo.limits[0].capacity: is not for us")
	_, err = config.ParsePolicies("p.yaml", []byte(good))
	require.NoError(t, err)
	_, err = config.ParsePolicies("p.yaml", []byte(good+"  other: {}\n"), check)
	require.ErrorContains(t, err, "p.yaml:5")
	require.NotContains(t, err.Error(), "not for us")
}
