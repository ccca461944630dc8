//go:build unix

package bucket

import (
	"context"
	"errors"
	"net"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/sluicehq/sluice/internal/redistest"
)

// TestOutOfMemory: what takes is refused and takes nothing, what gives back goes on.
func TestOutOfMemory(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	p := newPlant(t, &Limit{Name: "c", Kind: Concurrency, Per: PerDependency, Size: 10, Hold: time.Hour})
	settled, released, extended, reserved, undone := p.grant(), p.grant(), p.grant(), p.reserve(), p.ask(Take)
	slot := int64(0)
	for _, a := range []*Ask{&settled, &released, &extended, &reserved, &undone} {
		a.Costs = []int64{10}
		if a == &reserved { // behind a promise, so that its slot lies ahead
			first := p.reserve()
			first.Costs = []int64{plantCapacity - 40}
			p.must(first)
			a.MaxWait = MaxAhead
			continue
		}
		slot = p.must(*a).slot
	}
	before := p.taken()
	require.NoError(t, p.past.ConfigSet(ctx, "maxmemory", "1").Err())
	for _, a := range []Ask{p.ask(Take), p.keyed(), p.grant(), p.reserve()} {
		_, err := p.do(a)
		require.ErrorIs(t, err, ErrUnavailable)
		require.ErrorIs(t, err, ErrNotRun)
		require.ErrorContains(t, err, "OOM")
	}
	require.Equal(t, before, p.taken())

	set := p.set
	require.Equal(t, []int64{8}, p.must(Ask{Set: set, Verb: Settle, ID: settled.ID, Costs: []int64{2}}).Taken)
	require.Equal(t, before-8, p.taken())
	p.must(Ask{Set: set, Verb: Release, ID: released.ID})
	p.must(Ask{Set: set, Verb: Extend, ID: extended.ID, MaxWait: time.Minute})
	p.must(Ask{Set: set, Verb: Undo, ID: undone.ID, Costs: []int64{10}, slot: slot})
	require.Equal(t, before-18, p.taken())

	require.NoError(t, p.past.ConfigSet(ctx, "maxmemory", "0").Err())
	p.must(p.ask(Take))
	require.Equal(t, before-17, p.taken())
}

// TestCancelOutOfMemory: a reservation is given back even then.
func TestCancelOutOfMemory(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	l := tokenLimit(1, "1/min")
	l.Name = "slow"
	p := newPlant(t, l)
	p.must(p.ask(Take))
	a := p.reserve()
	require.Positive(t, p.must(a).StartIn)
	require.NoError(t, p.past.ConfigSet(ctx, "maxmemory", "1").Err())
	p.must(Ask{Set: p.set, Verb: Cancel, ID: a.ID})
	require.Equal(t, int64(1), p.taken())
}

// TestReadOnlyReplica: a replica decides nothing and takes nothing, and does once it is a master.
func TestReadOnlyReplica(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	p := newPlant(t)
	p.must(p.ask(Take))
	replica := redistest.Start(t)
	client := replica.Client(t)
	require.NoError(t, p.past.ConfigSet(ctx, "repl-diskless-sync-delay", "0").Err())
	host, port, err := net.SplitHostPort(p.server.Addr())
	require.NoError(t, err)
	require.NoError(t, client.Do(ctx, "REPLICAOF", host, port).Err())
	require.Eventually(t, func() bool {
		return client.HExists(ctx, StateKey(p.name), "td:rate").Val()
	}, 20*time.Second, time.Millisecond)
	limiter := NewStore(client, StoreOptions{}).Limiter(p.name)
	defer limiter.Close()
	for _, a := range []Ask{p.ask(Take), p.keyed(), p.grant(), p.reserve()} {
		_, err := limiter.Do(ctx, a, 0)
		require.ErrorIs(t, err, ErrNotRun)
		require.ErrorContains(t, err, "READONLY")
	}
	require.NoError(t, client.Do(ctx, "REPLICAOF", "NO", "ONE").Err())
	ans, err := limiter.Do(ctx, p.ask(Take), 0)
	require.NoError(t, err)
	require.Equal(t, int64(plantCapacity-2), ans.Limits[0].Remaining)
}

// TestFrozenRedis: callers leave when their time is up, and neither goroutines nor connections nor what waits pile up;
// when Redis goes on, what had been sent is given back.
func TestFrozenRedis(t *testing.T) { //nolint:paralleltest // counts goroutines
	p := newPlant(t)
	p.must(p.ask(Take))
	before, connections := runtime.NumGoroutine(), p.proxy.Accepted()
	p.server.Stop()
	for range 4 {
		var wg sync.WaitGroup
		for range 500 {
			wg.Go(func() {
				if _, err := p.limiter.Do(context.Background(), Ask{Set: p.set}, 5*time.Millisecond); !errors.Is(err, ErrTimeout) {
					t.Error(err)
				}
			})
		}
		wg.Wait() // all are answered while it stands still
		require.LessOrEqual(t, runtime.NumGoroutine(), before+5)
		require.LessOrEqual(t, p.proxy.Accepted(), connections+2)
		p.limiter.calls.mu.Lock()
		require.Zero(t, p.limiter.calls.waiting)
		require.Less(t, len(p.limiter.calls.fresh), 500)
		p.limiter.calls.mu.Unlock()
	}
	p.server.Cont()
	p.must(p.ask(Take))
	require.Equal(t, int64(2), p.taken())
}

// TestLimiterLeavesNothingRunning: after Close no goroutine is left, whatever happened.
func TestLimiterLeavesNothingRunning(t *testing.T) { //nolint:paralleltest // goleak looks at all goroutines
	server := redistest.Start(t)
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), DialerRetries: 1})
	defer func() { require.NoError(t, client.Close()) }()
	limiter := NewStore(client, StoreOptions{}).Limiter("d")
	_, err := limiter.Do(t.Context(), Ask{Set: NewSet(1, []*Limit{tokenLimit(1, "1/s")}, "default")}, 0)
	require.ErrorIs(t, err, ErrNoPolicy)
	server.Kill()
	for range 5 {
		_, err = limiter.Do(t.Context(), Ask{Set: NewSet(1, nil, "default")}, 0)
		require.ErrorIs(t, err, ErrUnavailable)
	}
	limiter.Close()
	_, err = limiter.Do(t.Context(), Ask{Set: NewSet(1, nil, "default")}, 0)
	require.ErrorIs(t, err, ErrClosed)
}

// rich is a dependency with a key of each sort, and the asks that made them.
func rich(t *testing.T) (p *plant, keyed, grant Ask) {
	t.Helper()
	p = newPlant(t,
		&Limit{Name: "own", Kind: TokenBucket, Per: PerTenant, Unit: Requests, Size: 50, Initial: 50, Refill: rate("1/d")},
		&Limit{Name: "c", Kind: Concurrency, Per: PerDependency, Size: 50, Hold: time.Hour},
		&Limit{Name: "log", Kind: SlidingLog, Per: PerTenant, Unit: Requests, Size: 50, Window: time.Hour},
		&Limit{Name: "day", Kind: Quota, Per: PerTenant, Unit: Requests, Size: 50, Every: Calendar{Every: Day}})
	keyed, grant = p.keyed(), p.grant()
	p.must(keyed)
	p.must(grant)
	return p, keyed, grant
}

// sorts names the keys of a dependency by what they are for.
func (p *plant) sorts() map[string]string {
	keys, err := p.past.Keys(context.Background(), Prefix(p.name)+"*").Result()
	require.NoError(p.t, err)
	sorts := map[string]string{}
	for _, k := range keys {
		sort := strings.TrimPrefix(k, Prefix(p.name))
		for _, named := range []string{"g:", "idem:", "reply:", "s:"} {
			if strings.HasPrefix(sort, named) {
				_, field, ends := strings.Cut(sort, "/")
				if sort = named; ends {
					sort += "/" + field
				}
			}
		}
		sorts[strings.NewReplacer("/cd:", "/", "/lt:", "/").Replace(sort)] = k
	}
	return sorts
}

// TestAnyKeyDeleted: whichever key of a dependency is deleted, every ask and verb has an answer, and what was lost is what
// the key held.
func TestAnyKeyDeleted(t *testing.T) {
	t.Parallel()
	p, _, _ := rich(t)
	for _, sort := range []string{"meta", "s", "s/c", "s:", "s:/log", "g:", "idem:", "reply:"} {
		require.Contains(t, p.sorts(), sort)
		t.Run(strings.NewReplacer("/", "-", "s:", "tenant", ":", "").Replace(sort), func(t *testing.T) {
			t.Parallel()
			p, keyed, grant := rich(t)
			require.Equal(t, int64(1), p.past.Del(t.Context(), p.sorts()[sort]).Val())
			plain := p.ask(Take)
			if sort == "meta" {
				for _, a := range []Ask{plain, keyed, {Set: p.set, Verb: Settle, ID: grant.ID, Costs: []int64{0}}, {Set: p.set, Verb: View}} {
					_, err := p.do(a)
					require.ErrorIs(t, err, ErrNoPolicy)
				}
				p.install(p.name)
			}
			if sort == "s" { // what the dependency's buckets held is not known
				lost, err := p.do(plain)
				require.NoError(t, err)
				require.Equal(t, Refused, lost.Outcome)
				require.Equal(t, "rate", p.set.Limits()[lost.BlockedBy].Name)
				return // TestLostStateStartsEmpty goes on
			}
			left := p.must(plain).Limits
			want := []int64{plantCapacity - 3, 47, 47, 47, 47}
			switch sort {
			case "s/c":
				want[2] = 49
			case "s:":
				want[1], want[4] = 49, 49
			case "s:/log":
				want[3] = 49
			}
			for i := range left {
				require.Equal(t, want[i], left[i].Remaining, p.set.limits[i].Name)
			}
			require.Equal(t, sort != "idem:", p.must(keyed).Replayed)
			for _, verb := range []Verb{Extend, Settle, Release} {
				ans, err := p.do(Ask{Set: p.set, Verb: verb, ID: grant.ID, Costs: []int64{1}, MaxWait: time.Minute})
				require.NoError(t, err)
				switch {
				case sort == "g:" && ans.Outcome != Unknown:
					// The key of sort g: that was deleted is one of two.
					require.Equal(t, Admitted, ans.Outcome)
				case sort == "s/c" && verb == Extend:
					require.Equal(t, TooLate, ans.Outcome)
				case sort != "g:":
					require.Equal(t, Admitted, ans.Outcome)
				}
			}
		})
	}
}

// TestLostBirth: a bucket without a birth and without a level begins empty, so that nobody gets a second capacity.
func TestLostBirth(t *testing.T) {
	t.Parallel()
	p := newPlant(t)
	require.NoError(t, p.past.HDel(t.Context(), MetaKey(p.name), "b:td:rate").Err())
	ans, err := p.do(p.ask(Take))
	require.NoError(t, err)
	require.Equal(t, Refused, ans.Outcome)
}

// TestWrongType: a key of another type is an error that names the script, for those asks that need the key; another
// dependency does not notice.
func TestWrongType(t *testing.T) {
	t.Parallel()
	p, keyed, grant := rich(t)
	other := p.store.Limiter(p.name + "-other")
	defer other.Close()
	p.install(p.name + "-other")
	sorts := p.sorts()
	settle := Ask{Set: p.set, Verb: Settle, ID: grant.ID, Costs: []int64{1}}
	sorts["g:"], sorts["idem:"] = Prefix(p.name)+"g:"+grant.ID, Prefix(p.name)+"idem:"+keyed.Key
	for i, row := range []struct {
		sort string
		ask  Ask
	}{
		{"meta", p.ask(Take)},
		{"s", p.ask(Take)},
		{"s/c", p.ask(Take)},
		{"s:", p.ask(Take)},
		{"s:/log", p.ask(Take)},
		{"idem:", keyed},
		{"g:", settle},
		{"reply:", settle},
	} {
		key := sorts[row.sort]
		kept, err := p.past.Dump(t.Context(), key).Result()
		require.NoError(t, err, row.sort)
		require.NoError(t, p.past.Del(t.Context(), key).Err())
		require.NoError(t, p.past.LPush(t.Context(), key, "x").Err())
		_, err = p.do(row.ask)
		require.ErrorIs(t, err, ErrBroken, row.sort)
		require.NotErrorIs(t, err, ErrUnavailable, row.sort)
		require.ErrorContains(t, err, "script decide", row.sort)
		require.ErrorContains(t, err, "WRONGTYPE", row.sort)
		ans, err := other.Do(t.Context(), Ask{Set: p.set, ID: "adm_o" + strconv.Itoa(i)}, 0)
		require.NoError(t, err)
		require.Equal(t, Admitted, ans.Outcome)
		require.NoError(t, p.past.RestoreReplace(t.Context(), key, time.Hour, kept).Err())
		require.NoError(t, p.past.Persist(t.Context(), key).Err())
	}
	require.Equal(t, int64(2), p.taken(), "nothing was taken by what failed")
}
