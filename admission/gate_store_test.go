//go:build unix

package admission_test

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluicehq/sluice/admission"
	"github.com/sluicehq/sluice/bucket"
	"github.com/sluicehq/sluice/internal/redistest"
)

// hourly is a policy of one bucket that does not refill while a test runs.
func hourly(capacity int, store string) string {
	return `{"limits": [{"name": "rate", "kind": "token_bucket", "capacity": ` + strconv.Itoa(capacity) + `, "refill": "1/h"}], "store": {` + store + `}}`
}

const patient = `"timeout": "10s"`

// TestP12GatesFollowEachOther: what one replica applies, another decides by at its next decision, whether it is a single
// ask, a batch, a verb on a grant or a look; and no counter starts anew.
func TestP12GatesFollowEachOther(t *testing.T) {
	t.Parallel()
	client, name := redistest.Shared(t), redistest.Name(t)
	one, two := newGate(t, client, name, hourly(100, patient)), newGate(t, client, name, "")
	first := two.must(admission.Ask{SettleLater: true, Costs: map[string]int64{"requests": 5}})
	require.NotZero(t, first.PolicyVersion)
	capacity := 100
	for i, next := range []func(){
		func() { two.must(admission.Ask{}) },
		func() {
			ds, err := two.AdmitBatch(t.Context(), name, []admission.Ask{{}}, false)
			require.NoError(t, err)
			require.Equal(t, admission.OutcomeAdmitted, ds[0].Outcome)
		},
		func() {
			ds, err := two.AdmitBatch(t.Context(), name, []admission.Ask{{}}, true)
			require.NoError(t, err)
			require.Equal(t, admission.OutcomeAdmitted, ds[0].Outcome)
		},
		func() {
			_, err := two.Grant(t.Context(), name, first.ID, admission.GrantOp{Verb: admission.GrantSettle, Costs: map[string]int64{"requests": 6}})
			require.NoError(t, err)
		},
		func() { two.left() },
	} {
		capacity -= 10
		one.apply(hourly(capacity, patient))
		version, err := client.HGet(t.Context(), bucket.MetaKey(name), "v").Int64()
		require.NoError(t, err)
		next()
		o, err := two.Dependency(t.Context(), name)
		require.NoError(t, err)
		require.Equal(t, version, o.Version, "step %d", i)
		require.Equal(t, int64(capacity), o.Limits[0].Size)
	}
	require.Equal(t, int64(50-9), two.left()["rate"])
	require.Equal(t, one.left(), two.left())
	d := one.must(admission.Ask{})
	require.Equal(t, d.PolicyVersion, two.must(admission.Ask{}).PolicyVersion)
}

// TestP12ChangesUnderLoad: a policy that changes all the time lets nothing more through than its largest capacity, and no
// ask fails for it.
func TestP12ChangesUnderLoad(t *testing.T) {
	t.Parallel()
	const large = 200
	client, name := redistest.Shared(t), redistest.Name(t)
	one, two := newGate(t, client, name, hourly(large, patient)), newGate(t, client, name, hourly(large, patient))
	var admitted, asked atomic.Int64
	var stop atomic.Bool
	var wg sync.WaitGroup
	for _, g := range []*gate{one, two} {
		for range 4 {
			wg.Go(func() {
				for !stop.Load() {
					d, err := g.Admit(context.Background(), name, admission.Ask{})
					if err != nil {
						t.Error(err)
						return
					}
					if asked.Add(1); d.Outcome == admission.OutcomeAdmitted {
						admitted.Add(1)
					}
				}
			})
		}
	}
	changer := newGate(t, client, name, "")
	for i := range 100 {
		changer.apply(hourly(large-i%2*150, patient))
		was := asked.Load()
		require.Eventually(t, func() bool { return asked.Load() > was+32 || t.Failed() }, 30*time.Second, 100*time.Microsecond)
	}
	stop.Store(true)
	wg.Wait()
	require.LessOrEqual(t, admitted.Load(), int64(large))
	require.GreaterOrEqual(t, admitted.Load(), int64(50))
}

// TestGateApplyRefuses: a document with a mistake, however many others in it are right, changes nothing.
func TestGateApplyRefuses(t *testing.T) {
	t.Parallel()
	client, name := redistest.Shared(t), redistest.Name(t)
	g := newGate(t, client, name, hourly(10, patient))
	version := g.must(admission.Ask{}).PolicyVersion
	var wrong *admission.ValidationError
	err := g.Apply(t.Context(), document(t, map[string]string{
		name: hourly(20, patient), name + "b": hourly(20, patient), name + "c": hourly(0, patient),
	}))
	require.ErrorAs(t, err, &wrong)
	require.ErrorContains(t, err, "capacity")
	err = g.Apply(t.Context(), document(t, map[string]string{name: hourly(20, patient), name + "b": hourly(20, `"on_failure": "local"`)}))
	require.ErrorContains(t, err, "dependencies."+name+"b.store.on_failure")

	require.Equal(t, version, g.must(admission.Ask{}).PolicyVersion)
	require.Equal(t, int64(8), g.left()["rate"])
	_, err = g.Admit(t.Context(), name+"b", admission.Ask{})
	require.ErrorIs(t, err, admission.ErrUnknownDependency)
	require.Zero(t, client.Exists(t.Context(), bucket.MetaKey(name+"b")).Val())
}

// TestGateFlushed: Redis comes back empty. The policy is there again with the next ask, and its buckets are empty, so that
// what was admitted before is not admitted a second time.
func TestGateFlushed(t *testing.T) {
	t.Parallel()
	client, name := redistest.Start(t).Client(t), redistest.Name(t)
	g := newGate(t, client, name, hourly(10, patient))
	for range 7 {
		g.must(admission.Ask{})
	}
	for range 3 {
		require.NoError(t, client.FlushAll(t.Context()).Err())
		for range 20 {
			d := g.ask(admission.Ask{})
			require.Equal(t, admission.ReasonLimit, d.Reason)
			require.LessOrEqual(t, d.Available, time.Hour)
		}
	}
	require.Equal(t, 3, g.notes.repairs("policy"))
	late := newGate(t, client, name, "")
	require.Equal(t, admission.ReasonLimit, late.ask(admission.Ask{}).Reason, "another replica finds the same")
}

// TestGateRestoresWhileIdle: a policy that Redis lost comes back although nobody asks.
func TestGateRestoresWhileIdle(t *testing.T) {
	t.Parallel()
	client, name := redistest.Start(t).Client(t), redistest.Name(t)
	g := newGate(t, client, name, hourly(10, patient))
	require.Empty(t, g.Ready(t.Context()))
	require.NoError(t, client.FlushAll(t.Context()).Err())
	require.Eventually(t, func() bool {
		return client.HExists(t.Context(), bucket.MetaKey(name), "v").Val() && client.SIsMember(t.Context(), "sluice:dependencies", name).Val()
	}, 30*time.Second, 5*time.Millisecond)
	require.Equal(t, admission.ReasonLimit, g.ask(admission.Ask{}).Reason, "with empty buckets")
	require.Empty(t, g.Ready(t.Context()))
	require.Equal(t, 1, g.notes.repairs("policy"))
}

// TestGateUnknownNames: a name that Redis does not know is not asked for again and again; one that nobody can have given
// never is; and one that is installed later is found.
func TestGateUnknownNames(t *testing.T) {
	t.Parallel()
	client := redistest.Start(t).Client(t)
	g := newGate(t, client, "known", hourly(10, patient))
	calls := func() int {
		info, err := client.Info(t.Context(), "commandstats").Result()
		require.NoError(t, err)
		n := 0
		for line := range strings.Lines(info) {
			if _, rest, ok := strings.Cut(line, ":calls="); ok && strings.HasPrefix(line, "cmdstat_eval") {
				count, _, _ := strings.Cut(rest, ",")
				c, err := strconv.Atoi(count)
				require.NoError(t, err)
				n += c
			}
		}
		return n
	}
	begin, before := time.Now(), calls()
	for range 2000 {
		_, err := g.Admit(t.Context(), "unknown", admission.Ask{})
		require.ErrorIs(t, err, admission.ErrUnknownDependency)
		_, err = g.Admit(t.Context(), "a}b\n", admission.Ask{})
		require.ErrorIs(t, err, admission.ErrUnknownDependency)
	}
	// Once a second at most: EVALSHA, and the first time EVAL.
	require.LessOrEqual(t, calls()-before, 2+2*int(time.Since(begin)/time.Second))

	newGate(t, client, "unknown", hourly(10, patient))
	require.Eventually(t, func() bool {
		d, err := g.Admit(t.Context(), "unknown", admission.Ask{})
		return err == nil && d.Outcome == admission.OutcomeAdmitted
	}, 30*time.Second, 5*time.Millisecond)
}

// TestGateChecksEviction: a Redis that drops keys is told by name, and so is the setting that is right.
func TestGateChecksEviction(t *testing.T) {
	t.Parallel()
	client := redistest.Start(t, "--maxmemory-policy", "allkeys-lru").Client(t)
	g := newGate(t, client, "d", hourly(10, patient))
	var evicts *bucket.EvictionError
	require.ErrorAs(t, g.Check(t.Context()), &evicts)
	require.Equal(t, "allkeys-lru", evicts.Policy)
	require.Len(t, g.Ready(t.Context()), 1)
	require.Contains(t, g.Ready(t.Context())[0], "noeviction")
	require.NoError(t, client.ConfigSet(t.Context(), "maxmemory-policy", "noeviction").Err())
	require.NoError(t, g.Check(t.Context()))
	require.Empty(t, g.Ready(t.Context()))
}

// TestP10GateWithoutStore: while Redis stands still each plain ask is answered by its policy's mode, what cannot be
// answered without it is an error, and when it goes on Redis decides again.
func TestP10GateWithoutStore(t *testing.T) {
	t.Parallel()
	for mode, want := range map[string]struct {
		outcome admission.Outcome
		reason  admission.Reason
	}{
		"open":   {admission.OutcomeAdmitted, admission.ReasonNone},
		"closed": {admission.OutcomeRejected, admission.ReasonStoreUnavailable},
	} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			client := server.Client(t, func(o *redis.Options) { o.ReadTimeout = 500 * time.Millisecond })
			// The name tells nothing of the mode; another dependency stands for those of the process.
			g := newGate(t, client, "d", hourly(1000, `"timeout": "20ms", "on_failure": "`+mode+`"`))
			require.Eventually(t, func() bool { // on a busy machine Redis itself may be late
				return g.ask(admission.Ask{}).Source == admission.SourceRedis
			}, 30*time.Second, time.Millisecond)
			held := g.ask(admission.Ask{SettleLater: true})
			server.Stop()
			for range 50 {
				d := g.ask(admission.Ask{})
				require.Equal(t, want.outcome, d.Outcome)
				require.Equal(t, want.reason, d.Reason)
				require.Equal(t, admission.SourceLocal, d.Source)
				require.Equal(t, mode, d.StoreMode)
				require.Equal(t, mode == "open", d.ID != "")
				require.Contains(t, d.Detail, "store.on_failure: "+mode)
				if mode == "closed" {
					require.GreaterOrEqual(t, d.RetryAfter, time.Second)
				}
			}
			for _, a := range []admission.Ask{{Mode: admission.ModeReserve}, {DryRun: true}} {
				_, err := g.Admit(t.Context(), "d", a)
				require.ErrorIs(t, err, bucket.ErrUnavailable)
			}
			ds, err := g.AdmitBatch(t.Context(), "d", []admission.Ask{{}, {}}, false)
			require.NoError(t, err)
			require.Equal(t, want.outcome, ds[1].Outcome)
			ds, err = g.AdmitBatch(t.Context(), "d", []admission.Ask{{}, {}}, true)
			if mode == "open" {
				require.NoError(t, err)
				require.Equal(t, want.outcome, ds[1].Outcome)
			} else {
				require.ErrorIs(t, err, bucket.ErrUnavailable)
			}
			_, err = g.Grant(t.Context(), "d", held.ID, admission.GrantOp{Verb: admission.GrantRelease})
			require.ErrorIs(t, err, bucket.ErrUnavailable)
			_, err = g.Admit(t.Context(), "never-heard-of", admission.Ask{})
			require.ErrorIs(t, err, bucket.ErrUnavailable)
			o, err := g.Dependency(t.Context(), "d")
			require.NoError(t, err)
			require.Equal(t, mode, o.StoreMode)
			require.Empty(t, o.States)
			require.NotEmpty(t, g.Ready(t.Context()))

			server.Cont()
			require.Eventually(t, func() bool { return g.ask(admission.Ask{}).Source == admission.SourceRedis }, 30*time.Second, time.Millisecond)
			require.Eventually(t, func() bool { return len(g.Ready(t.Context())) == 0 }, 30*time.Second, time.Millisecond)
			g.notes.mu.Lock()
			defer g.notes.mu.Unlock()
			require.GreaterOrEqual(t, len(g.notes.modes["d"]), 3)
			require.Subset(t, []string{"redis", mode}, g.notes.modes["d"])
			for i, m := range g.notes.modes["d"][1:] {
				require.NotEqual(t, g.notes.modes["d"][i], m, "once per change")
			}
		})
	}
}

// TestGateAppliedWithoutStore: a gate that starts while Redis is away answers by the policies' modes, and installs them
// when it is back, with full buckets, since it never decided before.
func TestGateAppliedWithoutStore(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t, func(o *redis.Options) { o.DialerRetries, o.MaxRetries = 1, -1 })
	server.Kill()
	g := newGate(t, client, "d", hourly(10, `"timeout": "1s", "on_failure": "open"`))
	require.Equal(t, admission.SourceLocal, g.must(admission.Ask{}).Source)
	require.Contains(t, strings.Join(g.Ready(t.Context()), "; "), "store")
	server.Restart(t)
	require.Eventually(t, func() bool { return len(g.Ready(t.Context())) == 0 }, 30*time.Second, 5*time.Millisecond)
	require.Eventually(t, func() bool { return g.ask(admission.Ask{}).Source == admission.SourceRedis }, 30*time.Second, 5*time.Millisecond)
	require.Positive(t, g.left()["rate"])
}
