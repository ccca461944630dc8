package admission_test

import (
	"context"
	"errors"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluicehq/sluice/admission"
	"github.com/sluicehq/sluice/bucket"
	"github.com/sluicehq/sluice/internal/redistest"
)

// size is the size of the only limit of a policy in force, as a process finds it that knew nothing before.
func size(t *testing.T, client redis.UniversalClient) int64 {
	t.Helper()
	p, err := admission.NewStore(client).Load(t.Context(), "d")
	require.NoError(t, err)
	return p.Limits()[0].Size
}

// TestGateNewestPolicyComesBack: Redis loses a policy, or falls back to an earlier state, while processes hold different
// versions of it. The newest that any of them decided by is in force again, whoever notices first and whether or not those
// that know it are asked, and no number stands for two documents.
func TestGateNewestPolicyComesBack(t *testing.T) {
	t.Parallel()
	emptied := func(t *testing.T, client *redis.Client, _ map[string]string) {
		require.NoError(t, client.FlushAll(t.Context()).Err())
	}
	for name, lose := range map[string]func(t *testing.T, client *redis.Client, older map[string]string){
		"emptied": emptied,
		"rolled back": func(t *testing.T, client *redis.Client, older map[string]string) {
			emptied(t, client, nil)
			for key, value := range older {
				require.NoError(t, client.Restore(t.Context(), key, 0, value).Err())
			}
		},
		"meta": func(t *testing.T, client *redis.Client, _ map[string]string) {
			require.NoError(t, client.Del(t.Context(), bucket.MetaKey("d")).Err())
		},
		"documents": func(t *testing.T, client *redis.Client, _ map[string]string) {
			require.NoError(t, client.Del(t.Context(), "sluice:{d}:policy").Err())
		},
	} {
		for _, asked := range []bool{false, true} {
			t.Run(name+", newest asked "+strconv.FormatBool(asked), func(t *testing.T) {
				t.Parallel()
				client := redistest.Start(t).Client(t)
				old, anew := newGate(t, client, "d", hourly(10, patient)), newGate(t, client, "d", "")
				idle := old.must(admission.Ask{}).PolicyVersion
				older := map[string]string{}
				for _, key := range client.Keys(t.Context(), "*").Val() {
					older[key] = client.Dump(t.Context(), key).Val()
				}
				anew.apply(hourly(20, patient))
				last := anew.must(admission.Ask{}).PolicyVersion
				require.Greater(t, last, idle)
				lose(t, client, older)
				old.ask(admission.Ask{}) // it knows of nothing newer, and brings back what it knows
				if name == "meta" {
					require.Equal(t, int64(20), size(t, client), "its document is still there")
				}
				if asked {
					anew.ask(admission.Ask{})
				}
				require.Eventually(t, func() bool { return size(t, client) == 20 }, 30*time.Second, 5*time.Millisecond)
				for _, g := range []*gate{old, anew} {
					d := g.ask(admission.Ask{})
					if name != "meta" {
						require.Greater(t, d.PolicyVersion, last)
					}
				}
				require.Equal(t, int64(20), size(t, client))
				old.apply(hourly(30, patient))
				anew.ask(admission.Ask{})
				require.Equal(t, int64(30), size(t, client), "what is applied later is newer still")
			})
		}
	}
}

// TestGateSameDocumentTwice: a former document is in force again as a newer version. Who holds it as the former one does not
// make it older by bringing it back.
func TestGateSameDocumentTwice(t *testing.T) {
	t.Parallel()
	client := redistest.Start(t).Client(t)
	first, second, third := newGate(t, client, "d", hourly(10, patient)), newGate(t, client, "d", ""), newGate(t, client, "d", "")
	first.must(admission.Ask{})
	third.apply(hourly(20, patient))
	second.must(admission.Ask{})
	third.apply(hourly(10, patient))
	third.must(admission.Ask{})
	require.NoError(t, client.Del(t.Context(), bucket.MetaKey("d")).Err())
	first.ask(admission.Ask{})
	second.ask(admission.Ask{})
	require.Equal(t, int64(10), size(t, client))
}

// TestGateFollowsWhileIdle: a change by another process is followed although nobody asks.
func TestGateFollowsWhileIdle(t *testing.T) {
	t.Parallel()
	client := redistest.Start(t).Client(t)
	idle, other := newGate(t, client, "d", hourly(10, patient)), newGate(t, client, "d", "")
	other.apply(hourly(20, patient))
	require.Empty(t, idle.Ready(t.Context()), "another version is no loss")
	version, err := client.HGet(t.Context(), bucket.MetaKey("d"), "v").Int64()
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		idle.notes.mu.Lock()
		defer idle.notes.mu.Unlock()
		return idle.notes.version == version
	}, 30*time.Second, 5*time.Millisecond)
}

// TestGateReaddedBucketIsEmpty: a limit is renamed, or counts for others, and back again. What it had left at first has
// filled up meanwhile, and is not given a second time.
func TestGateReaddedBucketIsEmpty(t *testing.T) {
	t.Parallel()
	policy := func(name, per string) string {
		return `{"limits":[{"name":"` + name + `","kind":"token_bucket","per":"` + per + `","capacity":10,"refill":"10/s"}],"store":{"timeout":"10s"}}`
	}
	for name, between := range map[string]string{"renamed": policy("other", "dependency"), "of tenants": policy("rate", "tenant")} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGate(t, redistest.Shared(t), redistest.Name(t), policy("rate", "dependency"))
			g.must(admission.Ask{})
			g.apply(between)
			time.Sleep(1100 * time.Millisecond)
			began := time.Now()
			g.apply(policy("rate", "dependency"))
			left := g.left()["rate"]
			require.LessOrEqual(t, left, int64(1+time.Since(began).Seconds()*10))
		})
	}
}

// withoutNames is a client whose server for the set of names is down.
type withoutNames struct{ down atomic.Bool }

func (*withoutNames) DialHook(next redis.DialHook) redis.DialHook { return next }

func (*withoutNames) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (h *withoutNames) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, c redis.Cmder) error {
		if h.down.Load() && len(c.Args()) > 1 && c.Args()[1] == "sluice:dependencies" {
			err := &net.OpError{Op: "dial", Err: errors.New("down")}
			c.SetErr(err)
			return err
		}
		return next(ctx, c)
	}
}

// TestGateAppliesWithoutNames: the list of names lies on a slot of its own. While that is away, policies are applied and
// decided by as ever.
func TestGateAppliesWithoutNames(t *testing.T) {
	t.Parallel()
	client, names := redistest.Start(t).Client(t), &withoutNames{}
	client.AddHook(names)
	g := newGate(t, client, "d", hourly(10, patient))
	g.must(admission.Ask{})
	names.down.Store(true)
	g.apply(hourly(20, patient))
	require.Equal(t, admission.SourceRedis, g.must(admission.Ask{}).Source)
	require.Equal(t, int64(20), size(t, client))
}

// TestGateTightPolicyHoldsUpNothing: a policy whose timeout is too short for the store is in trouble for good. Meanwhile what
// Redis lost comes back, and those that give it more time recover from trouble of theirs within two seconds.
func TestGateTightPolicyHoldsUpNothing(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr())
	g := newGate(t, proxy.Client(t), "tight", hourly(1_000_000, `"timeout": "1ms"`))
	require.NoError(t, g.Apply(t.Context(), document(t, map[string]string{"calm": hourly(1000, `"timeout": "500ms"`)})))
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for ctx.Err() == nil {
			_, _ = g.Admit(ctx, "tight", admission.Ask{})
			time.Sleep(time.Millisecond)
		}
	}()
	defer func() { cancel(); <-stopped }()
	calm := func() bool {
		d, err := g.Admit(t.Context(), "calm", admission.Ask{})
		return err == nil && d.Source == admission.SourceRedis
	}
	proxy.Delay(2 * time.Second)
	require.Eventually(t, func() bool { return !calm() && len(g.Ready(ctx)) > 0 }, 60*time.Second, 50*time.Millisecond)
	proxy.Delay(5 * time.Millisecond)
	began := time.Now()
	require.Eventually(t, calm, 60*time.Second, 50*time.Millisecond)
	require.Less(t, time.Since(began), 15*time.Second) // 2 s, what still hangs, and what a busy machine adds

	require.NoError(t, server.Client(t).FlushAll(t.Context()).Err())
	require.Eventually(t, func() bool {
		return strings.Count(strings.Join(server.Client(t).Keys(t.Context(), "*:meta").Val(), " "), "meta") == 2
	}, 60*time.Second, 50*time.Millisecond)
}

// TestGateFindsTroubleInACrowd: a store that hangs is noticed soon, however many wait for it.
func TestGateFindsTroubleInACrowd(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	g := newGate(t, server.Client(t), "d", hourly(10, `"timeout": "5ms"`))
	g.ask(admission.Ask{})
	server.Stop()
	defer server.Cont()
	ctx, cancel := context.WithCancel(t.Context())
	for range 64 {
		go func() {
			for ctx.Err() == nil {
				_, _ = g.Admit(ctx, "d", admission.Ask{})
			}
		}()
	}
	defer cancel()
	began := time.Now()
	require.Eventually(t, func() bool { return g.notes.mode("d") == "closed" }, 30*time.Second, 10*time.Millisecond)
	require.Less(t, time.Since(began), 3*time.Second) // a fifth of one, and what a busy machine adds
}
