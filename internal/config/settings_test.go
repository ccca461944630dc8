package config_test

import (
	"log/slog"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/sluicehq/sluice/internal/config"
	"github.com/sluicehq/sluice/internal/redistest"
)

func TestServeSettings(t *testing.T) {
	t.Parallel()
	s, err := config.ReadServe(nil)
	require.NoError(t, err)
	require.Equal(t, config.Serve{
		Listen: "127.0.0.1:8080", RedisURL: "redis://127.0.0.1:6379", MaxInFlight: 10_000,
		ShutdownTimeout: 15 * time.Second, DrainDelay: time.Second, DependencyLabel: true,
	}, s)
	require.NoError(t, s.Validate())

	s, err = config.ReadServe([]string{
		"SLUICE_LISTEN=:9000", "SLUICE_REDIS_URL=redis://:hunter2@h", "SLUICE_POLICIES=/p.yaml", "SLUICE_MAX_IN_FLIGHT=5",
		"SLUICE_LOG_LEVEL=debug", "SLUICE_SHUTDOWN_TIMEOUT=3s", "SLUICE_DRAIN_DELAY=0s", "SLUICE_DEPENDENCY_LABEL=false",
		"OTHER=x",
	})
	require.NoError(t, err)
	require.Equal(t, config.Serve{
		Listen: ":9000", RedisURL: "redis://:hunter2@h", Policies: "/p.yaml", MaxInFlight: 5,
		LogLevel: slog.LevelDebug, ShutdownTimeout: 3 * time.Second,
	}, s)

	fs := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	s.RegisterFlags(fs)
	require.NotContains(t, fs.FlagUsages(), "hunter2")
	require.NoError(t, fs.Parse([]string{"--listen", ":9001", "--max-in-flight=6", "--log-level=warn", "--dependency-label"}))
	require.Equal(t, config.Serve{
		Listen: ":9001", RedisURL: "redis://:hunter2@h", Policies: "/p.yaml", MaxInFlight: 6,
		LogLevel: slog.LevelWarn, ShutdownTimeout: 3 * time.Second, DependencyLabel: true,
	}, s, "the flag before the environment, the environment before the default")
	require.ErrorContains(t, fs.Parse([]string{"--log-level=loud"}), "debug, info, warn, error")
}

func TestServeSettingsRefused(t *testing.T) {
	t.Parallel()
	_, err := config.ReadServe([]string{"SLUICE_MAX_IN_FLIGHT=many", "SLUICE_SHUTDOWN_TIMEOUT=3", "SLUICE_LOG_LEVEL=loud"})
	for _, name := range []string{"SLUICE_MAX_IN_FLIGHT", "SLUICE_SHUTDOWN_TIMEOUT", "SLUICE_LOG_LEVEL"} {
		require.ErrorContains(t, err, name, "all at once")
	}
	s := config.Serve{Listen: "8080", RedisURL: "http://:hunter2@h", ShutdownTimeout: -1, DrainDelay: time.Hour}
	err = s.Validate()
	for _, name := range []string{"--listen", "--redis-url", "--max-in-flight", "--shutdown-timeout", "--drain-delay"} {
		require.ErrorContains(t, err, name)
	}
	require.NotContains(t, err.Error(), "hunter2")
	s.Listen = "h:99999"
	require.ErrorContains(t, s.Validate(), "65535")
}

func TestRedisClient(t *testing.T) {
	t.Parallel()
	type want struct {
		kind, user, password string
		addrs                []string
		db                   int
		tls                  bool
	}
	for text, w := range map[string]want{
		"redis://h":                                {"single", "", "", []string{"h:6379"}, 0, false},
		"redis://u:p%40ss@h:1/3":                   {"single", "u", "p@ss", []string{"h:1"}, 3, false},
		"redis://:p/s@h":                           {"single", "", "p/s", []string{"h:6379"}, 0, false},
		"redis://:pw@h:1?db=4&pool_size=5":         {"single", "", "pw", []string{"h:1"}, 4, false},
		"rediss://[::1]:7":                         {"single", "", "", []string{"[::1]:7"}, 0, true},
		"redis://[::1]?tls=true":                   {"single", "", "", []string{"[::1]:6379"}, 0, true},
		"redis+sentinel://:pw@a:1,b/mymaster?db=2": {"sentinel", "", "pw", nil, 2, false},
		"redis+cluster://u:pw@a:1,b:2":             {"cluster", "u", "pw", []string{"a:1", "b:2"}, 0, false},
		"redis+cluster://one:1?tls=true":           {"cluster", "", "", []string{"one:1"}, 0, true},
		"rediss+cluster://a,[::1]:2/":              {"cluster", "", "", []string{"a:6379", "[::1]:2"}, 0, true},
	} {
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			client, err := config.RedisClient(text)
			require.NoError(t, err)
			defer client.Close()
			switch c := client.(type) {
			case *redis.ClusterClient:
				o := c.Options()
				require.Equal(t, "cluster", w.kind)
				require.Equal(t, w.addrs, o.Addrs)
				require.Equal(t, []any{w.user, w.password, w.tls}, []any{o.Username, o.Password, o.TLSConfig != nil})
				require.False(t, o.ContextTimeoutEnabled)
			case *redis.Client:
				o := c.Options()
				if w.kind == "single" {
					require.Equal(t, w.addrs[0], o.Addr)
				} else {
					require.Equal(t, "sentinel", w.kind)
					require.Equal(t, "FailoverClient", o.Addr)
				}
				require.Equal(t, []any{w.user, w.password, w.tls, w.db}, []any{o.Username, o.Password, o.TLSConfig != nil, o.DB})
				require.False(t, o.ContextTimeoutEnabled)
				require.Equal(t, time.Second, o.ReadTimeout)
				require.Equal(t, time.Second, o.WriteTimeout)
				require.Equal(t, 500*time.Millisecond, o.DialTimeout)
			}
		})
	}
}

func TestRedisClientRefuses(t *testing.T) {
	t.Parallel()
	for text, why := range map[string]string{
		"":                                        "no scheme",
		"localhost:6379":                          "no scheme",
		"http://:hunter2@h":                       "redis+cluster://",
		"redis+other://:hunter2@h":                "unknown scheme",
		"redis://:hunter2@":                       "empty host",
		"redis://:hunter2@h:x":                    "port",
		"redis://:hunter2@h:0":                    "port",
		"redis://:hunter2@a:1:2":                  "brackets",
		"redis://:hunter2@a,b":                    "several hosts",
		"redis://:hunter2@h/x":                    "database",
		"redis://:hunter2@h/-1":                   "database",
		"redis://:hunter2%zz@h":                   "percent-encoded",
		"redis://:hunter2?x@h":                    "",
		"redis://:hunter2#x@h:x":                  "port",
		"redis://hunter2@h":                       "without a password",
		"redis://:hunter2@h?password=hunter2":     "unknown parameter",
		"redis://:hunter2@h?db=1&db=2":            "twice",
		"redis://:hunter2@h?tls=hunter2":          "tls",
		"redis://:hunter2@h?pool_size=0":          "pool_size",
		"redis+sentinel://:hunter2@h":             "name of the master",
		"redis+sentinel://:hunter2@h/":            "name of the master",
		"redis+cluster://:hunter2@h/1":            "database 0 only",
		"redis+cluster://:hunter2@h?db=1":         "unknown parameter",
		"redis://:hunter2@h?sentinel_password=xx": "unknown parameter",
	} {
		_, err := config.RedisClient(text)
		require.ErrorContains(t, err, why, "%s", text)
		require.NotContains(t, err.Error(), "hunter2", "%s", text)
		require.Equal(t, "an invalid URL", config.RedisTarget(text))
	}
	require.Equal(t, "redis://h:6379/3", config.RedisTarget("redis://:hunter2@h/3"))
	require.Equal(t, "redis+sentinel://a:26379,b:26379/m", config.RedisTarget("redis+sentinel://:hunter2@a,b/m?sentinel_password=hunter2"))
}

func TestRedisClientWorks(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--requirepass", "se@cret/1")
	client, err := config.RedisClient("redis://:se%40cret%2F1@" + server.Addr())
	require.NoError(t, err)
	defer client.Close()
	require.NoError(t, client.Ping(t.Context()).Err())
	require.NoError(t, client.Set(t.Context(), "k", 1, 0).Err())
}
