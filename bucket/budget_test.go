//go:build unix

package bucket

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluicehq/sluice/internal/redistest"
)

// commands counts what a script has Redis do while f runs, on a server that nobody else uses.
func commands(t *testing.T, client *redis.Client, f func()) int {
	t.Helper()
	ctx := context.Background()
	require.NoError(t, client.ConfigResetStat(ctx).Err())
	f()
	info, err := client.Info(ctx, "commandstats").Result()
	require.NoError(t, err)
	total := 0
	for line := range strings.Lines(info) {
		name, rest, ok := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":calls=")
		if !ok || strings.HasPrefix(name, "eval") || strings.HasPrefix(name, "config") || name == "info" {
			continue
		}
		count, _, _ := strings.Cut(rest, ",")
		n, err := strconv.Atoi(count)
		require.NoError(t, err)
		total += n
	}
	return total
}

// everyKind is a limit of each kind, named by it.
func everyKind(per Per) map[Kind]*Limit {
	m := map[Kind]*Limit{
		TokenBucket:   {Size: 1000, Initial: 1000, Refill: rate("1/s"), OnExceeded: Wait},
		Concurrency:   {Size: 1000, Hold: time.Hour, OnExceeded: Wait},
		Quota:         {Size: 1000, Every: Calendar{Every: Day}},
		SlidingWindow: {Size: 1000, Window: time.Hour},
		SlidingLog:    {Size: 1000, Window: time.Hour},
	}
	for kind, l := range m {
		l.Name, l.Kind, l.Per = string(kind), kind, per
		if kind != Concurrency {
			l.Unit = Requests
		}
	}
	return m
}

func kinds() []Kind { return []Kind{TokenBucket, Concurrency, Quota, SlidingWindow, SlidingLog} }

// TestCommandsPerBatch: a batch has Redis do at most 16 commands and 4 for each ask that it counts as, and no batch counts
// as more than 128. Measured on asks of a tenant each, the dearest there are.
func TestCommandsPerBatch(t *testing.T) {
	t.Parallel()
	client := redistest.Start(t).Client(t)
	mixes := [][]Kind{{TokenBucket, Quota}, {TokenBucket, Quota, SlidingWindow}, {TokenBucket, Concurrency}, kinds()}
	for _, k := range kinds() {
		mixes = append(mixes, []Kind{k})
	}
	for _, per := range []Per{PerDependency, PerTenant} {
		for _, mix := range mixes {
			var limits []*Limit
			for _, k := range mix {
				limits = append(limits, everyKind(per)[k])
			}
			for _, n := range []int{1, 2, 128} {
				for _, keeps := range []bool{false, true} {
					w := newWorld(t, client, redistest.Name(t), limits...)
					w.countCommands(client, n, keeps)
					w.close()
				}
			}
		}
	}
}

// countCommands sends a batch of each verb for n tenants, and last one of all verbs together.
func (w *world) countCommands(client *redis.Client, n int, keeps bool) {
	t, ok := w.t.(*testing.T)
	require.True(w.t, ok)
	ask := func(i int, verb Verb, cost int64, id string) Ask {
		name := strconv.Itoa(i)
		a := Ask{Set: w.set("default"), Tenant: name, Verb: verb, ID: "adm_" + id + name, MaxWait: time.Minute, Class: "default"}
		for range a.Set.units {
			a.Costs = append(a.Costs, cost)
		}
		if keeps && (verb == Take || verb == Reserve) {
			a.Key, a.Fingerprint, a.KeyTTL, a.SettleWithin = id+name, "f", time.Minute, time.Minute
		}
		return a
	}
	check := func(what string, batch []*call) {
		asks := 0
		for _, c := range batch {
			size, _ := c.size()
			asks += size
		}
		count := commands(t, client, func() { w.redis(batch...) })
		require.LessOrEqual(t, count, 16+4*asks, "%s of %d by %v, keeps %v", what, n, w.limits, keeps)
	}
	for _, step := range []struct {
		what string
		verb Verb
		cost int64
		id   string
	}{
		{"take", Take, 1, "a"},
		{"refusal", Take, 1000, "b"},
		{"repeat", Take, 1, "a"},
		{"view", View, 1, ""},
		{"extend", Extend, 1, "a"},
		{"settle", Settle, 0, "a"},
		{"release", Release, 1, "a"},
		{"reserve", Reserve, 1, "c"},
		{"cancel", Cancel, 1, "c"},
		{"undo", Undo, 1, "a"},
	} {
		var batch []*call
		for i := range n {
			batch = append(batch, callOf(ask(i, step.verb, step.cost, step.id)))
		}
		check(step.what, batch)
	}
	var mixed []*call
	for i := range n {
		verb := []Verb{Take, Settle, Reserve, Release, Take, Extend, View}[i%7]
		mixed = append(mixed, callOf(ask(i, verb, 1, []string{"d", "a", "e", "c", "f", "a", "g"}[i%7])))
	}
	check("mix", mixed)
}

// TestBatchesEnd: however many wait, a batch counts as 128 asks at most, of which one that leaves something behind is two,
// and names 256 keys at most.
func TestBatchesEnd(t *testing.T) {
	t.Parallel()
	for _, keyed := range []bool{false, true} {
		t.Run("keyed "+strconv.FormatBool(keyed), func(t *testing.T) {
			t.Parallel()
			testBatchesEnd(t, keyed)
		})
	}
}

func testBatchesEnd(t *testing.T, keyed bool) {
	const callers = 600
	per := PerDependency
	if keyed {
		per = PerTenant
	}
	w := newWorld(t, redistest.Shared(t), redistest.Name(t), everyKind(per)[TokenBucket])
	var sizes []int
	most := 0
	send, gate := w.limiter.calls.cfg.Exec, make(chan struct{})
	w.limiter.calls.cfg.Exec = func(batch []*call) ([]reply, error) {
		if len(sizes) == 0 {
			<-gate
		}
		asks, keys := 0, 0
		for _, c := range batch {
			a, k := c.size()
			asks, keys = asks+a, keys+k
		}
		sizes, most = append(sizes, asks), max(most, keys)
		return send(batch)
	}
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			name := strconv.Itoa(i)
			a := Ask{Set: w.set("default"), Tenant: name, ID: "adm_" + name}
			if keyed {
				a.Key, a.Fingerprint, a.KeyTTL = name, "f", time.Minute
			}
			if ans, err := w.limiter.Do(context.Background(), a, 0); err != nil || ans.Outcome != Admitted {
				t.Errorf("%v %v", ans.Outcome, err)
			}
		})
	}
	require.Eventually(t, func() bool {
		w.limiter.calls.mu.Lock()
		defer w.limiter.calls.mu.Unlock()
		return w.limiter.calls.seq == callers
	}, 10*time.Second, time.Millisecond)
	close(gate)
	wg.Wait()
	w.close()
	sum := 0
	for _, n := range sizes {
		sum += n
	}
	require.Equal(t, 128, slices.Max(sizes))
	require.LessOrEqual(t, most, 256)
	if keyed {
		require.Equal(t, 2*callers, sum)
		require.Equal(t, 128, most)
	} else {
		require.Equal(t, callers, sum)
	}
}

// TestTenantsAreForgotten: whatever a tenant leaves behind ends by itself, soon after it says anything, and only what the
// dependency has once stays.
func TestTenantsAreForgotten(t *testing.T) {
	t.Parallel()
	const tenants, batch = 10_000, 50
	ctx, client := context.Background(), redistest.Start(t).Client(t)
	var limits []*Limit
	for _, per := range []Per{PerDependency, PerTenant} {
		for _, k := range kinds() {
			if per == PerDependency && k == SlidingLog {
				continue // of its thousands of entries every refusal would look at all
			}
			l := *everyKind(per)[k]
			l.Name += "-" + string(per)
			if per == PerDependency {
				l.Shadow = true // so that it refuses nobody
			}
			limits = append(limits, &l)
		}
	}
	w := newWorld(t, client, redistest.Name(t), limits...)
	defer w.close()
	for i := 0; i < tenants; i += batch {
		var calls []*call
		for j := range batch {
			name := strconv.Itoa(i + j)
			for k, cost := range []int64{1, 1000}[:1+j%2] { // the second one is refused
				key := strconv.Itoa(k) + "-" + name
				calls = append(calls, callOf(Ask{
					Set: w.set("default"), Tenant: name, ID: "adm_" + key, Key: key, Fingerprint: "f", KeyTTL: time.Minute,
					SettleWithin: time.Minute, Costs: []int64{cost},
				}))
			}
		}
		w.redis(calls...)
	}
	var stay []string
	most, seen := time.Duration(0), 0
	cursor := uint64(0)
	for {
		keys, next, err := client.Scan(ctx, cursor, "*", 5000).Result()
		require.NoError(t, err)
		pipe := client.Pipeline()
		ttls := make([]*redis.DurationCmd, len(keys))
		for i, k := range keys {
			ttls[i] = pipe.PTTL(ctx, k)
		}
		_, err = pipe.Exec(ctx)
		require.NoError(t, err)
		for i, k := range keys {
			seen++
			if ttl := ttls[i].Val(); ttl < 0 {
				stay = append(stay, strings.TrimPrefix(k, Prefix(w.name)))
			} else {
				most = max(most, ttl)
			}
		}
		if cursor = next; next == 0 {
			break
		}
	}
	require.Greater(t, seen, 5*tenants+tenants/2)
	slices.Sort(stay)
	require.LessOrEqual(t, len(stay), 100) // or the message is long
	require.Equal(t, []string{"meta", "meta:clock", "s"}, slices.Compact(stay))
	// The quota of a day is remembered longest: its window, the one before and the next, an hour and three minutes.
	require.LessOrEqual(t, most, 73*time.Hour+3*time.Minute)
}
