//go:build unix

package redistest_test

import (
	"context"
	"fmt"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluicehq/sluice/internal/redistest"
)

func TestStart(t *testing.T) {
	t.Parallel()
	var addr string
	t.Run("runs", func(t *testing.T) {
		s := redistest.Start(t, "--maxmemory", "64mb")
		addr = s.Addr()
		client := s.Client(t)
		for name, want := range map[string]string{
			"maxmemory-policy": "noeviction",
			"maxmemory":        "67108864",
			"save":             "",
			"appendonly":       "no",
		} {
			require.Equal(t, want, client.ConfigGet(t.Context(), name).Val()[name], name)
		}
		require.NoError(t, client.Do(t.Context(), "DEBUG", "SET-ACTIVE-EXPIRE", 0).Err())

		options, err := redis.ParseURL(s.URL())
		require.NoError(t, err)
		require.Equal(t, addr, options.Addr)
	})
	require.False(t, listens(t, addr), "ends with its test")
}

func TestStartWithPassword(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, "--requirepass", "s3cret/:@")
	require.NoError(t, s.Client(t).Ping(t.Context()).Err())
	options, err := redis.ParseURL(s.URL())
	require.NoError(t, err)
	require.Equal(t, "s3cret/:@", options.Password)

	wrong := s.Client(t, func(o *redis.Options) { o.Password = "" })
	require.ErrorContains(t, wrong.Ping(t.Context()).Err(), "NOAUTH")
}

func TestStopAndCont(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	client := s.Client(t, func(o *redis.Options) {
		o.MaxRetries = -1
		o.ReadTimeout = 100 * time.Millisecond
	})
	require.NoError(t, client.Set(t.Context(), "k", "v", 0).Err())

	s.Stop()
	require.Error(t, client.Get(t.Context(), "k").Err())
	require.True(t, listens(t, s.Addr()), "a frozen server still has its socket")

	s.Cont()
	value, err := s.Client(t).Get(t.Context(), "k").Result()
	require.NoError(t, err)
	require.Equal(t, "v", value)
}

func TestKillAndRestart(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		args []string
		want string
	}{
		"memory only": {want: ""},
		"append only": {args: []string{"--appendonly", "yes", "--appendfsync", "always"}, want: "v"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Start(t, tt.args...)
			addr := s.Addr()
			client := s.Client(t)
			require.NoError(t, client.Set(t.Context(), "k", "v", 0).Err())

			s.Kill()
			require.False(t, listens(t, addr))
			s.Kill() // once more does no harm

			s.Restart(t)
			require.Equal(t, addr, s.Addr())
			require.Equal(t, tt.want, client.Get(t.Context(), "k").Val())

			s.Stop()
			s.Restart(t) // a frozen one is killed first
			require.Equal(t, tt.want, client.Get(t.Context(), "k").Val())
		})
	}
}

// fatalTB notes what ends a test.
type fatalTB struct {
	testing.TB

	said string
}

func (f *fatalTB) Fatalf(format string, args ...any) {
	f.said = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// startFails returns how Start ended a test.
func startFails(t *testing.T, args ...string) string {
	t.Helper()
	tb := &fatalTB{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		redistest.Start(tb, args...)
	}()
	<-done
	return tb.said
}

func TestStartFailsPlainly(t *testing.T) {
	require.Contains(t, startFails(t, "--no-such-option", "1"), "Bad directive")

	t.Setenv("PATH", t.TempDir())
	require.Contains(t, startFails(t), "`make test` installs it on Debian")
}

func TestShared(t *testing.T) {
	t.Parallel()
	run := regexp.MustCompile(`run_id:(\w+)`)
	var ids []string
	for range 2 {
		client := redistest.Shared(t)
		ids = append(ids, run.FindStringSubmatch(client.Info(t.Context(), "server").Val())[1])
	}
	require.Equal(t, ids[0], ids[1])
	require.NotEqual(t, ids[0], run.FindStringSubmatch(redistest.Start(t).Client(t).Info(t.Context(), "server").Val())[1])
}

func TestSharedClientIsTheTests(t *testing.T) {
	t.Parallel()
	var client *redis.Client
	t.Run("uses it", func(t *testing.T) {
		client = redistest.Shared(t, func(o *redis.Options) { o.ClientName = "mutated" })
		require.Equal(t, "mutated", client.ClientGetName(t.Context()).Val())
	})
	require.ErrorIs(t, client.Ping(context.Background()).Err(), redis.ErrClosed)
}

func TestName(t *testing.T) {
	t.Parallel()
	valid := regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,62}$`)
	var seen sync.Map
	for _, name := range []string{"plain", "with space/and:{braces}\n", "ünïcode", strings.Repeat("Long", 100), "", "/."} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for range 100 {
				got := redistest.Name(t)
				require.Regexp(t, valid, got)
				_, twice := seen.LoadOrStore(got, true)
				require.False(t, twice, got)
			}
		})
	}
}
