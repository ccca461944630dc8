//go:build unix

package redistest_test

import (
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluicehq/sluice/internal/redistest"
)

// patient leaves retries to the test.
func patient(o *redis.Options) { o.MaxRetries = -1 }

// proxied returns a proxy before the shared server, a client through it that
// has a connection, a client past it and a key of the test's own.
func proxied(t *testing.T) (proxy *redistest.Proxy, through, past *redis.Client, key string) {
	t.Helper()
	past = redistest.Shared(t)
	proxy = redistest.NewProxy(t, past.Options().Addr)
	through = proxy.Client(t, patient)
	require.NoError(t, through.Ping(t.Context()).Err())
	return proxy, through, past, redistest.Name(t)
}

func TestProxyPasses(t *testing.T) {
	t.Parallel()
	proxy, through, past, key := proxied(t)
	big := strings.Repeat("x", 1<<20)
	require.NoError(t, through.Set(t.Context(), key, big, time.Minute).Err())
	require.Equal(t, big, past.Get(t.Context(), key).Val())
	require.Equal(t, big, through.Get(t.Context(), key).Val())
	require.Equal(t, 1, proxy.Accepted())
	require.NotEqual(t, past.Options().Addr, proxy.Addr())
}

func TestProxyDelaysTheReplyAndNotTheDeed(t *testing.T) {
	t.Parallel()
	const delay = time.Second
	proxy, through, past, key := proxied(t)
	proxy.Delay(delay)
	done := make(chan error, 1)
	start := time.Now()
	go func() { done <- through.Set(t.Context(), key, 1, time.Minute).Err() }()

	require.Eventually(t, func() bool { return past.Exists(t.Context(), key).Val() == 1 }, delay, time.Millisecond)
	require.Empty(t, done, "the deed is done, the client does not know")
	require.NoError(t, <-done)
	require.GreaterOrEqual(t, time.Since(start), delay)

	proxy.Delay(0)
	require.NoError(t, through.Get(t.Context(), key).Err())
}

func TestProxyDelayDoesNotNarrow(t *testing.T) {
	t.Parallel()
	const delay = 200 * time.Millisecond
	proxy, through, _, _ := proxied(t)
	proxy.Delay(delay)
	start := time.Now()
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() { _ = through.Ping(t.Context()).Err() })
	}
	wg.Wait()
	// One after the other they would need 2 s and more; a new connection has
	// a few round trips of greetings first.
	require.Less(t, time.Since(start), 9*delay)
}

func TestProxyCuts(t *testing.T) {
	t.Parallel()
	proxy, through, _, _ := proxied(t)
	server := redistest.Start(t)
	stuck := redistest.NewProxy(t, server.Addr())
	waiting := stuck.Client(t, patient)
	require.NoError(t, waiting.Ping(t.Context()).Err())
	server.Stop()
	done := make(chan error, 1)
	go func() { done <- waiting.Ping(t.Context()).Err() }()
	require.Eventually(t, func() bool {
		stuck.Cut()
		select {
		case err := <-done:
			return err != nil
		default:
			return false
		}
	}, 2*time.Second, time.Millisecond, "sooner than any time-out")

	proxy.Cut()
	retrying := proxy.Client(t)
	require.NoError(t, retrying.Ping(t.Context()).Err(), "new connections are welcome")
	require.GreaterOrEqual(t, proxy.Accepted(), 2)
	_ = through.Ping(t.Context()).Err() // may or may not have noticed
	require.NoError(t, through.Ping(t.Context()).Err())
}

func TestProxyDropsReplies(t *testing.T) {
	t.Parallel()
	proxy, through, past, key := proxied(t)
	proxy.DropReplies(2)
	for done := 1; done <= 2; done++ {
		// The second one goes over a new connection, whose greeting counts
		// for nothing.
		require.Error(t, through.Incr(t.Context(), key).Err())
		require.Equal(t, done, proxy.Dropped())
		count, err := past.Get(t.Context(), key).Int()
		require.NoError(t, err)
		require.Equal(t, done, count, "the server did what was asked")
	}
	require.EqualValues(t, 3, through.Incr(t.Context(), key).Val())
}

func TestProxyDropsBigRequestsAndPipelinesAsOne(t *testing.T) {
	t.Parallel()
	proxy, through, past, key := proxied(t)
	proxy.DropReplies(2)
	require.Error(t, through.Set(t.Context(), key, strings.Repeat("x", 1<<20), time.Minute).Err())
	require.EqualValues(t, 1<<20, past.StrLen(t.Context(), key).Val())
	_, err := through.Pipelined(t.Context(), func(p redis.Pipeliner) error {
		for range 10 {
			p.Append(t.Context(), key, "y")
		}
		return nil
	})
	require.Error(t, err)
	require.EqualValues(t, 1<<20+10, past.StrLen(t.Context(), key).Val())
	require.NoError(t, through.Ping(t.Context()).Err())
}

// TestProxyShowsADoubleDeed is the fault that DropReplies is for: go-redis asks
// again by itself.
func TestProxyShowsADoubleDeed(t *testing.T) {
	t.Parallel()
	proxy, _, _, key := proxied(t)
	retrying := proxy.Client(t)
	require.NoError(t, retrying.Set(t.Context(), key, 0, time.Minute).Err())
	proxy.DropReplies(1)
	require.EqualValues(t, 2, retrying.Incr(t.Context(), key).Val())
}

func TestProxyRefuses(t *testing.T) {
	t.Parallel()
	proxy, through, _, _ := proxied(t)
	accepted := proxy.Accepted()
	proxy.Refuse(true)
	proxy.Refuse(true) // once more does no harm
	require.NoError(t, through.Ping(t.Context()).Err(), "connections that exist stay")

	err := proxy.Client(t, patient).Ping(t.Context()).Err()
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	require.Equal(t, accepted, proxy.Accepted())

	proxy.Refuse(false)
	proxy.Refuse(false)
	require.NoError(t, proxy.Client(t, patient).Ping(t.Context()).Err())
	require.Equal(t, accepted+1, proxy.Accepted())
}

func TestProxyWithoutServer(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr())
	server.Kill()
	require.Error(t, proxy.Client(t, patient).Ping(t.Context()).Err())
	server.Restart(t)
	require.NoError(t, proxy.Client(t, patient).Ping(t.Context()).Err())
}
