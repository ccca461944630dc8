package embedded_test

import (
	"net"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/sluicehq/sluice/internal/embedded"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start returns a client of a server of the test's own.
func start(t *testing.T) *redis.Client {
	t.Helper()
	server, err := embedded.Start()
	require.NoError(t, err)
	t.Cleanup(server.Close)
	client := server.Client()
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	return client
}

func TestStartAndClose(t *testing.T) {
	t.Parallel()
	one, err := embedded.Start()
	require.NoError(t, err)
	two, err := embedded.Start()
	require.NoError(t, err)
	t.Cleanup(two.Close)
	require.NotEqual(t, one.Addr(), two.Addr())
	host, _, err := net.SplitHostPort(one.Addr())
	require.NoError(t, err)
	require.True(t, net.ParseIP(host).IsLoopback(), host)

	client := one.Client()
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	require.NoError(t, client.Set(t.Context(), "k", 1, 0).Err())
	other := two.Client()
	t.Cleanup(func() { require.NoError(t, other.Close()) })
	require.ErrorIs(t, other.Get(t.Context(), "k").Err(), redis.Nil)

	one.Close()
	one.Close()
	require.Error(t, client.Ping(t.Context()).Err())
}

func TestTTLFollowsTheClock(t *testing.T) {
	t.Parallel()
	const ttl = 300 * time.Millisecond
	client, ctx := start(t), t.Context()
	begin := time.Now()
	require.NoError(t, client.Set(ctx, "short", 1, ttl).Err())
	require.NoError(t, client.Set(ctx, "long", 1, time.Hour).Err())
	require.NoError(t, client.Set(ctx, "forever", 1, 0).Err())
	require.Eventually(t, func() bool { return client.Exists(ctx, "short").Val() == 0 }, 10*time.Second, time.Millisecond)
	require.GreaterOrEqual(t, time.Since(begin), ttl, "and not before")

	left := client.PTTL(ctx, "long").Val()
	require.Greater(t, left, 59*time.Minute)
	require.LessOrEqual(t, left, time.Hour-ttl, "what is left shrinks")
	require.Equal(t, time.Duration(-1), client.PTTL(ctx, "forever").Val())
}

func TestScriptsKnowTheTime(t *testing.T) {
	t.Parallel()
	client, ctx := start(t), t.Context()
	script := redis.NewScript(`
		local now = redis.call('TIME')
		return tonumber(now[1]) * 1000000 + tonumber(now[2])`)
	last := time.Now()
	for range 3 {
		us, err := script.Run(ctx, client, nil).Int64()
		require.NoError(t, err)
		now := time.UnixMicro(us)
		require.False(t, now.Before(last.Truncate(time.Microsecond)))
		require.WithinDuration(t, time.Now(), now, 5*time.Second)
		last = now
	}
	require.ErrorContains(t, client.EvalSha(ctx, "0000000000000000000000000000000000000000", nil).Err(), "NOSCRIPT")
}

// TestScriptsExpireOnCondition covers what keeps a time-out from being
// shortened by a later, shorter use.
func TestScriptsExpireOnCondition(t *testing.T) {
	t.Parallel()
	client, ctx := start(t), t.Context()
	pexpire := redis.NewScript(`return redis.call('PEXPIRE', KEYS[1], ARGV[1], ARGV[2])`)
	steps := []struct {
		ms, condition string
		set           int
		want          time.Duration
	}{
		{"20000", "GT", 0, -1}, // no time-out is longer than any
		{"20000", "NX", 1, 20 * time.Second},
		{"30000", "NX", 0, 20 * time.Second},
		{"10000", "GT", 0, 20 * time.Second},
		{"40000", "GT", 1, 40 * time.Second},
		{"50000", "LT", 0, 40 * time.Second},
		{"30000", "LT", 1, 30 * time.Second},
		{"35000", "XX", 1, 35 * time.Second},
	}
	require.NoError(t, client.Set(ctx, "k", 1, 0).Err())
	for i, step := range steps {
		set, err := pexpire.Run(ctx, client, []string{"k"}, step.ms, step.condition).Int()
		require.NoError(t, err, "step %d", i)
		require.Equal(t, step.set, set, "step %d", i)
		left := client.PTTL(ctx, "k").Val()
		if step.want < 0 {
			require.Equal(t, step.want, left, "step %d", i)
			continue
		}
		require.InDelta(t, step.want, left, float64(5*time.Second), "step %d", i)
	}
}

func TestScriptsReadSortedSets(t *testing.T) {
	t.Parallel()
	client, ctx := start(t), t.Context()
	script := redis.NewScript(`
		for i = 1, 10 do redis.call('ZADD', KEYS[1], i, 'm' .. i) end
		redis.call('ZADD', KEYS[1], 'GT', 1, 'm5')
		redis.call('ZADD', KEYS[1], 'NX', 1, 'm5')
		return {
			redis.call('ZCOUNT', KEYS[1], '(2', 5),
			redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '+inf', 'LIMIT', 1, 2),
			redis.call('ZRANGEBYSCORE', KEYS[1], '(9', '+inf', 'WITHSCORES', 'LIMIT', 0, 5),
			redis.call('ZREVRANGEBYSCORE', KEYS[1], '+inf', '-inf', 'LIMIT', 0, 1),
			redis.call('ZRANGE', KEYS[1], '(3', '+inf', 'BYSCORE', 'LIMIT', 0, 1),
			redis.call('ZPOPMIN', KEYS[1]),
			redis.call('ZRANK', KEYS[1], 'm3'),
			redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', 5),
			redis.call('ZSCORE', KEYS[1], 'm5'),
		}`)
	got, err := script.Run(ctx, client, []string{"z"}).Slice()
	require.NoError(t, err)
	require.Equal(t, []any{
		int64(3),
		[]any{"m2", "m3"},
		[]any{"m10", "10"},
		[]any{"m10"},
		[]any{"m4"},
		[]any{"m1", "1"},
		int64(1),
		int64(4),
		nil,
	}, got)
}
