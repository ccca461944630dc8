package admission_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluicehq/sluice/admission"
	"github.com/sluicehq/sluice/bucket"
	"github.com/sluicehq/sluice/internal/redistest"
)

// TestGateOneTightPolicyLeavesOthersAlone: what is too slow for a policy of 1 ms is in time for one of seconds, so its
// trouble is its own, however many callers it has.
func TestGateOneTightPolicyLeavesOthersAlone(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr())
	g := newGate(t, proxy.Client(t), "tight", `{"limits":[{"name":"rate","kind":"token_bucket","capacity":1000000,"refill":"1000/s"}],"store":{"timeout":"1ms"}}`)
	require.NoError(t, g.Apply(t.Context(), document(t, map[string]string{
		"calm": `{"limits":[{"name":"rate","kind":"token_bucket","capacity":1000000,"refill":"1000/s"}],"store":{"timeout":"10s"}}`,
	})))
	proxy.Delay(5 * time.Millisecond)
	var tight sync.WaitGroup
	late := make([]int, 16)
	for i := range late {
		tight.Go(func() {
			for range 500 {
				d, err := g.Admit(t.Context(), "tight", admission.Ask{})
				if err == nil && d.Reason == admission.ReasonStoreUnavailable {
					late[i]++
				}
			}
		})
	}
	for range 60 {
		d, err := g.Admit(t.Context(), "calm", admission.Ask{})
		require.NoError(t, err)
		require.Equal(t, admission.OutcomeAdmitted, d.Outcome, d.Detail)
	}
	tight.Wait()
	sum := 0
	for _, n := range late {
		sum += n
	}
	require.Positive(t, sum, "the tight policy was in trouble")
	require.Empty(t, g.Ready(t.Context()), "the broker is ready for the others")
}

// TestGateBatchOutlivesPolicyChanges: a batch goes out in pieces; a policy that changes between two of them leaves no
// token that nobody was told of.
func TestGateBatchOutlivesPolicyChanges(t *testing.T) {
	t.Parallel()
	client := redistest.Shared(t)
	const capacity = 10_000
	policy := func(i int) string {
		return `{"description":"` + strconv.Itoa(i) + `","limits":[{"name":"rate","kind":"token_bucket","capacity":` +
			strconv.Itoa(capacity) + `,"refill":"1/d"}],"store":{"timeout":"10s"}}`
	}
	name := redistest.Name(t)
	g, other := newGate(t, client, name, policy(0)), newGate(t, client, name, "")
	stop := make(chan struct{})
	var changes sync.WaitGroup
	changes.Go(func() {
		for i := 1; ; i++ {
			select {
			case <-stop:
				return
			default:
				other.apply(policy(i))
			}
		}
	})
	admitted := 0
	for range 30 {
		asks := make([]admission.Ask, 300)
		decisions, err := g.AdmitBatch(t.Context(), name, asks, false)
		if err != nil { // it changed faster than it could be followed, before anything was taken
			continue
		}
		for _, d := range decisions {
			if d.Outcome == admission.OutcomeAdmitted {
				admitted++
			}
		}
	}
	close(stop)
	changes.Wait()
	require.Positive(t, admitted)
	require.Equal(t, int64(capacity-admitted), g.left()["rate"])
}

// TestGateReplayTellsWhatIsLeft: a reservation that is asked for again by its key says how long it is still to wait, and
// one that was cancelled is asked for anew.
func TestGateReplayTellsWhatIsLeft(t *testing.T) {
	t.Parallel()
	g := newGate(t, redistest.Shared(t), redistest.Name(t),
		`{"limits":[{"name":"rate","kind":"token_bucket","capacity":1,"refill":"1/min"}],"store":{"timeout":"10s"}}`)
	g.must(admission.Ask{})
	ask := admission.Ask{Mode: admission.ModeReserve, Wait: time.Minute, IdempotencyKey: "k"}
	first := g.must(ask)
	again := g.must(ask)
	require.True(t, again.Replayed)
	require.Equal(t, first.ID, again.ID)
	require.WithinDuration(t, first.StartAt, again.StartAt, 0)
	require.Less(t, again.StartIn, first.StartIn)
	_, err := g.Grant(t.Context(), g.name, first.ID, admission.GrantOp{Verb: admission.GrantCancel})
	require.NoError(t, err)
	anew := g.must(ask)
	require.False(t, anew.Replayed)
	require.NotEqual(t, first.ID, anew.ID)
}

// TestGateOutOfMemory: where Redis has no memory left, plain asks are answered by their policy's mode and what gives back
// goes on, however many asks are refused meanwhile.
func TestGateOutOfMemory(t *testing.T) {
	t.Parallel()
	client := redistest.Start(t).Client(t)
	const limits = `{"limits":[{"name":"rate","kind":"token_bucket","capacity":10,"refill":"1/min"},
		{"name":"slots","kind":"concurrency","max":9,"max_hold":"1h"}],"store":{"timeout":"10s","on_failure":"closed"}}`
	g := newGate(t, client, "d", limits)
	require.NoError(t, g.Apply(t.Context(), document(t, map[string]string{"free": hourly(1, `"timeout": "10s", "on_failure": "open"`)})))
	settled := g.must(admission.Ask{SettleLater: true, Costs: map[string]int64{"requests": 8}})
	released, extended := g.must(admission.Ask{}), g.must(admission.Ask{})
	reserved := g.must(admission.Ask{Mode: admission.ModeReserve, Wait: time.Minute})
	require.NoError(t, client.ConfigSet(t.Context(), "maxmemory", "1").Err())
	for range 20 {
		d := g.ask(admission.Ask{})
		require.Equal(t, admission.ReasonStoreUnavailable, d.Reason)
		require.Contains(t, d.Detail, "memory")
		_, err := g.Admit(t.Context(), "d", admission.Ask{Mode: admission.ModeReserve})
		require.ErrorIs(t, err, bucket.ErrFull)
	}
	for id, op := range map[string]admission.GrantOp{
		settled.ID:  {Verb: admission.GrantSettle, Costs: map[string]int64{"requests": 1}},
		released.ID: {Verb: admission.GrantRelease},
		extended.ID: {Verb: admission.GrantExtend, Hold: time.Minute},
		reserved.ID: {Verb: admission.GrantCancel},
	} {
		_, err := g.Grant(t.Context(), "d", id, op)
		require.NoError(t, err, op.Verb)
	}
	require.Empty(t, g.Ready(t.Context()), "it is of use to who gives back")
	for dependency, mode := range map[string]string{"d": "closed", "free": "open"} {
		o, err := g.Dependency(t.Context(), dependency)
		require.NoError(t, err)
		require.Equal(t, mode, o.StoreMode)
		require.Equal(t, mode, g.notes.mode(dependency), "and everybody can see it")
	}
	require.NoError(t, client.ConfigSet(t.Context(), "maxmemory", "0").Err())
	g.must(admission.Ask{})
	require.Eventually(t, func() bool { return g.notes.mode("d") == "redis" && g.notes.mode("free") == "redis" }, 30*time.Second, 5*time.Millisecond)
}

// commands is how many commands that try the store a server has been sent.
func commands(t *testing.T, client *redis.Client) int {
	t.Helper()
	info, err := client.Info(t.Context(), "commandstats").Result()
	require.NoError(t, err)
	sum := 0
	for line := range strings.Lines(info) {
		name, rest, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "cmdstat_"), ":calls=")
		switch name {
		case "evalsha", "eval", "set", "scard": // not what scripts call as well
		default:
			continue
		}
		calls, tail, _ := strings.Cut(rest, ",")
		n, err := strconv.Atoi(calls)
		require.NoError(t, err)
		_, refused, _ := strings.Cut(tail, "rejected_calls=")
		refused, _, _ = strings.Cut(refused, ",")
		r, err := strconv.Atoi(refused)
		require.NoError(t, err)
		sum += n + r
	}
	return sum
}

// TestGateTriesSeldom: a store that refuses is tried at most ten times a second by a process, whatever it refuses: with
// asks of many policies and timeouts, a policy that it has lost, and policies that are to be installed.
func TestGateTriesSeldom(t *testing.T) {
	t.Parallel()
	policies := map[string]string{}
	for i := range 6 {
		policies[fmt.Sprintf("d%d", i)] = hourly(1000, fmt.Sprintf(`"timeout": "%ds"`, i+1))
	}
	for name, trouble := range map[string]func(t *testing.T, server *redis.Client, g *admission.Gate){
		"read-only, and the policies lost": func(t *testing.T, server *redis.Client, _ *admission.Gate) {
			require.NoError(t, server.FlushAll(t.Context()).Err())
			require.NoError(t, server.Do(t.Context(), "REPLICAOF", "127.0.0.1", "1").Err())
			require.NoError(t, server.ConfigSet(t.Context(), "replica-serve-stale-data", "yes").Err())
		},
		"no replicas": func(t *testing.T, server *redis.Client, _ *admission.Gate) {
			require.NoError(t, server.ConfigSet(t.Context(), "min-replicas-to-write", "1").Err())
		},
		"no replicas, and policies to install": func(t *testing.T, server *redis.Client, g *admission.Gate) {
			require.NoError(t, server.ConfigSet(t.Context(), "min-replicas-to-write", "1").Err())
			more := map[string]string{}
			for i := range 50 {
				more[fmt.Sprintf("more%d", i)] = hourly(1000, patient)
			}
			require.NoError(t, g.Apply(t.Context(), document(t, more)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t).Client(t)
			g := newGate(t, server, "d", "")
			require.NoError(t, g.Apply(t.Context(), document(t, policies)))
			for i := range policies {
				_, err := g.Admit(t.Context(), i, admission.Ask{})
				require.NoError(t, err)
			}
			trouble(t, server, g.Gate)
			ctx, cancel := context.WithCancel(t.Context())
			var callers sync.WaitGroup
			for i := range policies {
				for range 3 {
					callers.Go(func() {
						for ctx.Err() == nil {
							_, _ = g.Admit(ctx, i, admission.Ask{})
							_, _ = g.Grant(ctx, i, "adm_none", admission.GrantOp{Verb: admission.GrantRelease})
							time.Sleep(100 * time.Microsecond)
						}
					})
				}
			}
			time.Sleep(time.Second) // it is found to be in trouble
			before, began := commands(t, server), time.Now()
			time.Sleep(3 * time.Second)
			tries, took := commands(t, server)-before, time.Since(began)
			cancel()
			callers.Wait()
			require.LessOrEqual(t, tries, int(10*took.Seconds()))
			require.Positive(t, tries, "it is tried")

			require.NoError(t, server.ConfigSet(t.Context(), "min-replicas-to-write", "0").Err())
			require.NoError(t, server.Do(t.Context(), "REPLICAOF", "NO", "ONE").Err())
			for i := range policies {
				require.Eventually(t, func() bool {
					d, err := g.Admit(t.Context(), i, admission.Ask{})
					return err == nil && d.Source == admission.SourceRedis
				}, 30*time.Second, time.Millisecond)
			}
			require.Eventually(t, func() bool { return len(g.Ready(t.Context())) == 0 }, 30*time.Second, time.Millisecond)
		})
	}
}

// TestGateGivesBackAcrossChanges: a caller leaves before it hears of its admission, and the policy changes before that can
// be given back; it is given back all the same.
func TestGateGivesBackAcrossChanges(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr())
	policy := func(capacity int) string {
		return fmt.Sprintf(`{"limits":[{"name":"rate","kind":"token_bucket","capacity":%d,"refill":"1/h"},
			{"name":"slots","kind":"concurrency","max":5,"max_hold":"1h"}],"store":{"timeout":"10s"}}`, capacity)
	}
	g, other := newGate(t, proxy.Client(t), "d", policy(100)), newGate(t, server.Client(t), "d", "")
	g.must(admission.Ask{})
	for i := range 4 {
		proxy.Delay(500 * time.Millisecond)
		ctx, cancel := context.WithCancel(t.Context())
		left := make(chan error)
		go func() {
			_, err := g.Admit(ctx, "d", admission.Ask{})
			left <- err
		}()
		require.Eventually(t, func() bool { return other.left()["slots"] == 3 }, 30*time.Second, time.Millisecond)
		cancel()
		require.ErrorIs(t, <-left, context.Canceled)
		next := make(chan string)
		if i%2 == 1 { // goes out together with what is given back, and is found to be of an old version
			go func() {
				d, err := g.Admit(t.Context(), "d", admission.Ask{})
				if err != nil {
					t.Error(err)
				}
				next <- d.ID
			}()
			time.Sleep(50 * time.Millisecond)
		}
		other.apply(policy(101 + i))
		proxy.Delay(0)
		if i%2 == 1 {
			id := <-next
			_, err := g.Grant(t.Context(), "d", id, admission.GrantOp{Verb: admission.GrantRelease})
			require.NoError(t, err)
		}
		require.Eventually(t, func() bool { return other.left()["slots"] == 4 }, 30*time.Second, time.Millisecond, "round %d", i)
		require.Equal(t, int64(100+i-(i+1)/2), other.left()["rate"])
	}
}

// TestGateCrowdSharesOneChase: however many asks find at once that Redis has lost their policy and cannot take it back, it
// is tried for all of them together.
func TestGateCrowdSharesOneChase(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t).Client(t)
	g := newGate(t, server, "d", hourly(10, patient))
	g.must(admission.Ask{})
	require.NoError(t, server.FlushAll(t.Context()).Err())
	require.NoError(t, server.Do(t.Context(), "REPLICAOF", "127.0.0.1", "1").Err())
	before := commands(t, server)
	var crowd sync.WaitGroup
	for range 300 {
		crowd.Go(func() {
			if d, err := g.Admit(t.Context(), "d", admission.Ask{}); err != nil || d.Source != admission.SourceLocal {
				t.Error(d.Source, err)
			}
		})
	}
	crowd.Wait()
	require.Less(t, commands(t, server)-before, 60)
}

// TestGateBatchOutlivesItsClasses: a class that some of a batch have is removed while the batch goes out in pieces. What was
// decided by then is told, since it was taken; the others are refused, each by itself.
func TestGateBatchOutlivesItsClasses(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr())
	policy := func(classes string) string {
		return `{"store": {"timeout": "10s"}, "classes": {"a": {}` + classes + `},
		  "limits": [{"name": "rate", "kind": "token_bucket", "capacity": 2000, "refill": "1/d"}]}`
	}
	g, other := newGate(t, proxy.Client(t), "d", policy(`, "b": {}`)), newGate(t, server.Client(t), "d", "")
	g.must(admission.Ask{})
	asks := make([]admission.Ask, 1000)
	for i := range asks {
		asks[i].Class = []string{"a", "b"}[i/500]
	}
	proxy.Delay(30 * time.Millisecond)
	var decisions []admission.Decision
	done := make(chan error)
	go func() {
		var err error
		decisions, err = g.AdmitBatch(t.Context(), "d", asks, false)
		done <- err
	}()
	require.Eventually(t, func() bool { return other.left()["rate"] < 1990 }, 30*time.Second, time.Millisecond)
	other.apply(policy(""))
	require.NoError(t, <-done)
	admitted := 0
	for i, d := range decisions {
		if d.Outcome == admission.OutcomeAdmitted {
			admitted++
			require.Less(t, i, 500)
			continue
		}
		require.Contains(t, d.Detail, "class")
	}
	require.Positive(t, admitted)
	require.Equal(t, int64(2000-1-admitted), other.left()["rate"])
}
