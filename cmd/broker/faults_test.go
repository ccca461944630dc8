package main

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluicehq/sluice/internal/redistest"
)

// both has one dependency for each failure mode, with a timeout that is their subject.
const both = `
dependencies:
  shut:
    limits:
      - {name: rate, kind: token_bucket, capacity: 1000, refill: 1/h}
    store: {timeout: 200ms, on_failure: closed}
  free:
    limits:
      - {name: rate, kind: token_bucket, capacity: 1000, refill: 1/h}
    store: {timeout: 200ms, on_failure: open}
`

// byModes asks both until both are answered without the store, each within its timeout and what a busy machine adds.
func byModes(t *testing.T, b *broker) {
	t.Helper()
	const slack = 2 * time.Second
	for _, c := range []struct {
		dependency, mode string
		status           int
	}{{"shut", "closed", http.StatusServiceUnavailable}, {"free", "open", http.StatusOK}} {
		began := time.Now()
		a := b.ask(c.dependency, "")
		require.Less(t, time.Since(began), 200*time.Millisecond+slack)
		require.Equal(t, c.status, a.status, a.text)
		require.Equal(t, "local", a.Source)
		require.Equal(t, c.mode, a.Mode)
		if c.mode == "closed" {
			require.Equal(t, "store_unavailable", a.Reason)
			require.NotEmpty(t, a.header.Get("Retry-After"))
		}
	}
}

// normal waits until both are answered by Redis again, and says how long that took.
func normal(t *testing.T, b *broker) time.Duration {
	t.Helper()
	began := time.Now()
	eventually(t, "Redis decides again", func() bool {
		shut, err := b.send(http.MethodPost, "/v1/dependencies/shut/admissions", "")
		if err != nil {
			return false
		}
		free, err := b.send(http.MethodPost, "/v1/dependencies/free/admissions", "")
		return err == nil && shut.Source == "redis" && free.Source == "redis"
	})
	return time.Since(began)
}

// TestFaults_killed shows P10: with Redis killed each policy's mode answers, and Redis decides within 2 s of its return.
func TestFaults_killed(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	b, _ := serve(t, server.URL(), both)
	require.Equal(t, 10, b.take("shut", 10))
	server.Kill()
	for range 10 { // enough for the store to count as away, and beyond
		byModes(t, b)
	}
	require.False(t, b.ready())
	require.Contains(t, b.do(http.MethodGet, "/metrics", "").text, `sluice_store_mode{mode="closed"} 1`)
	b.logged(`"level":"ERROR"`, "does not answer")

	server.Restart(t)
	took := normal(t, b)
	require.Less(t, took, 2*time.Second+time.Second, "2 s, and what a busy machine adds")
	eventually(t, "ready", b.ready)
	b.logged("answers again")
	require.Less(t, b.decided("shut").Limits[0].Remaining, int64(990), "what was taken before stays taken")
}

// TestFaults_frozen: a Redis that hangs is one that is away, and nothing that piled up is done twice.
func TestFaults_frozen(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	b, _ := serve(t, server.URL(), both)
	require.Equal(t, 10, b.take("shut", 10))
	server.Stop()
	for range 10 {
		byModes(t, b)
	}
	server.Cont()
	normal(t, b)
	eventually(t, "ready", b.ready)
	for _, dependency := range []string{"shut", "free"} {
		a := b.decided(dependency)
		require.GreaterOrEqual(t, a.Limits[0].Remaining, 1000-b.asks(dependency), "an ask takes one token at most")
	}
}

// TestFaults_awayAtStart: the broker starts, answers by the modes, is not ready, and recovers by itself.
func TestFaults_awayAtStart(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	server.Kill()
	b, _ := serve(t, server.URL(), both)
	require.Equal(t, http.StatusOK, b.do(http.MethodGet, "/livez", "").status)
	require.False(t, b.ready())
	byModes(t, b)
	server.Restart(t)
	eventually(t, "ready without being asked", b.ready)
	normal(t, b)
	require.Equal(t, 5, b.take("shut", 5))
}

// TestFaults_emptied: asks bring the policies back, and buckets start empty: the limit holds over the loss.
func TestFaults_emptied(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	b, _ := serve(t, server.URL(), slowly(100))
	require.Equal(t, 10, b.take("shop", 10))
	require.NoError(t, server.Client(t).FlushAll(t.Context()).Err())
	require.Zero(t, b.take("shop", 20), "a refill of 1/h has given nothing back")
	eventually(t, "ready", b.ready)
	require.Zero(t, b.take("shop", 1))
}

// TestFaults_emptiedWhileIdle: policies come back though nobody asks for them. Until then asks should go elsewhere.
func TestFaults_emptiedWhileIdle(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	b, _ := serve(t, server.URL(), slowly(100))
	require.Equal(t, 10, b.take("shop", 10))
	client := server.Client(t)
	eventually(t, "not ready", func() bool { // Redis loses them faster than they come back
		require.NoError(t, client.FlushAll(t.Context()).Err())
		return !b.ready()
	})
	eventually(t, "ready", b.ready)
	require.Positive(t, client.HLen(t.Context(), "sluice:{shop}:policy").Val())
	require.Zero(t, b.take("shop", 1))
}

// TestFaults_evictionSetLater: a Redis that is told to evict makes the broker not ready, and the log says why.
func TestFaults_evictionSetLater(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	b, _ := serve(t, server.URL(), slowly(5))
	require.True(t, b.ready())
	client := server.Client(t)
	require.NoError(t, client.ConfigSet(t.Context(), "maxmemory-policy", "volatile-ttl").Err())
	b.logged(`"level":"ERROR"`, "volatile-ttl", "noeviction")
	a := b.do(http.MethodGet, "/readyz", "")
	require.Equal(t, http.StatusServiceUnavailable, a.status)
	require.Contains(t, a.text, "volatile-ttl")
	require.NoError(t, client.ConfigSet(t.Context(), "maxmemory-policy", "noeviction").Err())
	b.logged("configured rightly again")
	eventually(t, "ready", b.ready)
}
