package bucket

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluicehq/sluice/internal/embedded"
	"github.com/sluicehq/sluice/internal/redistest"
)

// movedClock reads the time from a key next to meta, so that a test moves it.
const movedClock = `
local function redis_time()
  return tonumber(redis.call('GET', KEYS[1] .. ':clock'))
end
`

// epoch is 2026-12-01T00:00:00Z in microseconds.
const epoch = int64(1_796_083_200_000_000)

// backends runs f on a real redis-server and on the embedded default.
func backends(t *testing.T, f func(t *testing.T, client redis.UniversalClient)) {
	t.Helper()
	t.Run("server", func(t *testing.T) {
		t.Parallel()
		f(t, redistest.Shared(t))
	})
	t.Run("embedded", func(t *testing.T) {
		t.Parallel()
		r, err := embedded.Start()
		require.NoError(t, err)
		t.Cleanup(r.Close)
		f(t, r.Client())
	})
}

// world is one dependency in Redis on a clock that the test moves, and beside it the model.
type world struct {
	t       require.TestingT
	client  redis.UniversalClient
	store   *Store
	limiter *Limiter
	name    string
	now     int64
	version int64
	limits  []*Limit
	model   *model
	ids     int
}

func newWorld(t require.TestingT, client redis.UniversalClient, name string, limits ...*Limit) *world {
	w := &world{t: t, client: client, name: name, now: epoch, version: 1, limits: limits}
	w.store = NewStore(client, StoreOptions{Clock: movedClock})
	w.limiter = w.store.Limiter(name)
	w.model = newModel(epoch, limits)
	w.move(0)
	w.install(limits, true)
	return w
}

func (w *world) close() { w.limiter.Close() }

// move moves the clock.
func (w *world) move(us int64) {
	w.now += us
	require.NoError(w.t, w.client.Set(context.Background(), MetaKey(w.name)+":clock", w.now, 0).Err())
	w.store.clock.observe(time.UnixMicro(w.now))
}

// install writes meta as the policy store does.
func (w *world) install(limits []*Limit, first bool) {
	ctx := context.Background()
	w.limits = limits
	if !first {
		w.version++
		w.model.install(w.now, limits)
	}
	fields := []any{"v", w.version}
	have := map[string]bool{}
	for _, l := range limits {
		if l.Kind == TokenBucket {
			b := w.model.births[l.Identity()]
			fields = append(fields, "b:"+l.Identity(), strconv.FormatInt(b.at, 10)+" "+strconv.FormatInt(b.level, 10))
			have["b:"+l.Identity()] = true
		}
	}
	old, err := w.client.HKeys(ctx, MetaKey(w.name)).Result()
	require.NoError(w.t, err)
	for _, f := range old {
		if strings.HasPrefix(f, "b:") && !have[f] {
			require.NoError(w.t, w.client.HDel(ctx, MetaKey(w.name), f).Err())
		}
	}
	left, err := w.client.HKeys(ctx, StateKey(w.name)).Result()
	require.NoError(w.t, err)
	for _, f := range left {
		id, _, _ := strings.Cut(f, "/")
		if have["b:"+id] && !slices.Contains(old, "b:"+id) {
			require.NoError(w.t, w.client.HDel(ctx, StateKey(w.name), f).Err())
		}
	}
	require.NoError(w.t, w.client.HSet(ctx, MetaKey(w.name), fields...).Err())
	require.NoError(w.t, w.client.HSet(ctx, StateKey(w.name), "installed", 1).Err())
}

func (w *world) set(class string) *Set { return NewSet(w.version, w.limits, class) }

func (w *world) id() string {
	w.ids++
	return "adm_" + strconv.Itoa(w.ids)
}

// redis sends a batch to Redis alone.
func (w *world) redis(batch ...*call) []reply {
	replies, err := w.limiter.exec(batch)
	require.NoError(w.t, err)
	return replies
}

// both sends a batch to Redis and to the model, which must agree to the microsecond.
func (w *world) both(batch ...*call) []reply {
	got := w.redis(batch...)
	copies := make([]call, len(batch))
	for i, c := range batch {
		copies[i] = *c
	}
	want := w.model.decide(w.now, copies)
	for i := range got {
		for j := range got[i].answers {
			normal(&want[i].answers[j])
			normal(&got[i].answers[j])
			require.Equal(w.t, want[i].answers[j], got[i].answers[j], "item %d of call %d", j, i)
		}
	}
	return got
}

// normal drops what the model and the decoder say in different words: an id where there is none to remember, empty
// lists.
func normal(a *Answer) {
	if a.Outcome != Admitted {
		a.ID = ""
	}
	a.Now = a.Now.UTC()
	if len(a.Limits) == 0 {
		a.Limits = nil
	}
	if len(a.Taken) == 0 {
		a.Taken = nil
	}
	if a.Replayed {
		a.slot = 0
	}
}

func (w *world) ask(a Ask) Answer { return w.both(callOf(a))[0].answers[0] }

func (w *world) take(cost int64) Answer {
	s := w.set("default")
	a := Ask{Set: s, ID: w.id(), Costs: make([]int64, len(s.units))}
	for i := range a.Costs {
		a.Costs[i] = cost
	}
	return w.ask(a)
}

func rate(s string) Rate {
	r, err := ParseRate(s)
	if err != nil {
		panic(err)
	}
	return r
}

func tokenLimit(capacity int64, refill string) *Limit {
	return &Limit{
		Name: "rate", Kind: TokenBucket, Per: PerDependency, Unit: Requests, OnExceeded: Wait, Size: capacity, Initial: capacity,
		Refill: rate(refill),
	}
}
