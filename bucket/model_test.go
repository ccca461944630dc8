package bucket

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/sluicehq/sluice/internal/redistest"
)

var zones = []string{"UTC", "America/New_York", "Europe/Berlin", "Asia/Kathmandu", "Australia/Lord_Howe"}

// drawLimit draws one limit of any kind. Sizes and rates are small and odd, where things break.
func drawLimit(t *rapid.T, i int) *Limit {
	l := &Limit{
		Name:       fmt.Sprintf("l%d", i),
		Kind:       rapid.SampledFrom([]Kind{TokenBucket, TokenBucket, Concurrency, Quota, SlidingWindow, SlidingLog}).Draw(t, "kind"),
		Per:        rapid.SampledFrom([]Per{PerDependency, PerTenant, PerClass, PerTenantClass}).Draw(t, "per"),
		Unit:       rapid.SampledFrom([]string{Requests, Requests, "llm_tokens"}).Draw(t, "unit"),
		Shadow:     rapid.IntRange(0, 5).Draw(t, "shadow") == 0,
		OnExceeded: rapid.SampledFrom([]OnExceeded{Wait, Reject}).Draw(t, "on_exceeded"),
	}
	if rapid.IntRange(0, 4).Draw(t, "confined") == 0 {
		l.Classes = []string{"bulk"}
	}
	l.Size = rapid.Int64Range(1, 20).Draw(t, "size")
	switch l.Kind {
	case TokenBucket:
		l.Refill = rate(rapid.SampledFrom([]string{
			"1/s", "3/s", "0.5/s", "1/min", "7/min", "10/s", "1000/s", "5/1.3s", "100/h", "1000000/s", "7/d",
		}).Draw(t, "refill"))
		l.Initial = rapid.Int64Range(0, l.Size).Draw(t, "initial")
		l.Debt = rapid.IntRange(0, 3).Draw(t, "debt") == 0
	case Concurrency:
		l.Unit = ""
		l.Hold = rapid.SampledFrom([]time.Duration{time.Second, 30 * time.Second, time.Hour}).Draw(t, "hold")
	case Quota:
		loc, err := time.LoadLocation(rapid.SampledFrom(zones).Draw(t, "zone"))
		require.NoError(t, err)
		l.Every = Calendar{
			Every: rapid.SampledFrom([]Period{Minute, Hour, Day, Week, Month}).Draw(t, "every"), Location: loc,
			Weekday: time.Monday, DayOfMonth: 1,
		}
	case SlidingWindow, SlidingLog:
		l.Window = rapid.SampledFrom([]time.Duration{time.Second, 1300 * time.Millisecond, time.Minute}).Draw(t, "window")
	}
	return l
}

func drawLimits(t *rapid.T) []*Limit {
	limits := make([]*Limit, rapid.IntRange(1, 4).Draw(t, "limits"))
	for i := range limits {
		limits[i] = drawLimit(t, i)
	}
	return limits
}

// drawChange changes one parameter of one limit, or adds or drops a limit.
func drawChange(t *rapid.T, limits []*Limit) []*Limit {
	out := append([]*Limit(nil), limits...)
	i := rapid.IntRange(0, len(out)-1).Draw(t, "which")
	l := *out[i]
	switch rapid.IntRange(0, 4).Draw(t, "change") {
	case 0:
		l.Size = rapid.Int64Range(1, 20).Draw(t, "size")
		l.Initial = min(l.Initial, l.Size)
	case 1:
		n := drawLimit(t, i)
		n.Kind, n.Unit, n.Hold, n.Initial = l.Kind, l.Unit, l.Hold, l.Initial
		if n.Refill.N == 0 {
			n.Refill = rate("13/7s")
		}
		if n.Window == 0 {
			n.Window = 2 * time.Second
		}
		if n.Every.Location == nil {
			n.Every = Calendar{Every: Hour, Location: time.UTC, DayOfMonth: 1, Weekday: time.Monday}
		}
		l.Refill, l.Window, l.Every = n.Refill, n.Window, n.Every
	case 2:
		return append(out, drawLimit(t, len(out)+10))
	case 3:
		l.Shadow = !l.Shadow
	case 4: // of any kind, scope and unit, under the same name
		was := l.Name
		l = *drawLimit(t, i)
		l.Name = was
	}
	out[i] = &l
	return out
}

func (w *world) drawAsk(t *rapid.T, ids []string, owner map[string]Ask) Ask {
	class := rapid.SampledFrom([]string{"default", "bulk"}).Draw(t, "class")
	a := Ask{Set: w.set(class), Tenant: rapid.SampledFrom([]string{"", "a", "b}x", "c\n1"}).Draw(t, "tenant"), Class: class}
	a.ID = w.id()
	verb := rapid.IntRange(0, 12).Draw(t, "verb")
	costs := func(lo int64) []int64 {
		c := make([]int64, len(a.Set.units))
		for i := range c {
			c[i] = rapid.Int64Range(lo, 8).Draw(t, "cost")
		}
		return c
	}
	clamp := func() {
		if a.Costs == nil {
			return
		}
		// A cost that never fits is refused before it comes here; Debt and shadow limits alone see one.
		for i, l := range a.Set.limits {
			if u := a.Set.unit[i]; u >= 0 && !l.Shadow && (l.Kind != TokenBucket || !l.Debt) {
				a.Costs[u] = min(a.Costs[u], l.Size)
			}
		}
	}
	switch {
	case verb < 5:
		if verb > 0 {
			a.Costs = costs(0)
		}
	case verb < 7:
		a.Verb, a.Costs = Reserve, costs(0)
		a.MaxWait = time.Duration(rapid.Int64Range(0, 60_000).Draw(t, "wait")) * time.Millisecond
	case verb < 8:
		a.Verb = View
	default:
		if len(ids) == 0 {
			return a
		}
		id := rapid.SampledFrom(ids).Draw(t, "id")
		was := owner[id]
		a = Ask{Set: w.set(was.Class), Tenant: was.Tenant, Class: was.Class, ID: id}
		a.Verb = []Verb{Settle, Settle, Release, Extend, Cancel}[verb-8]
		switch a.Verb {
		case Settle:
			a.Costs = costs(-1)
		case Extend:
			a.MaxWait = time.Duration(rapid.Int64Range(0, 100).Draw(t, "hold")) * time.Second
		}
		return a
	}
	clamp()
	if a.Verb == View {
		return a
	}
	if rapid.IntRange(0, 3).Draw(t, "settle") == 0 {
		a.SettleWithin = time.Duration(rapid.IntRange(1, 100).Draw(t, "within")) * time.Second
	}
	if rapid.IntRange(0, 3).Draw(t, "keyed") == 0 {
		a.Key, a.KeyTTL = "k"+strconv.Itoa(rapid.IntRange(0, 3).Draw(t, "key")), 100*time.Second
		a.Fingerprint = "f" + strconv.Itoa(rapid.IntRange(0, 1).Draw(t, "fp"))
	}
	if a.Verb == Take && a.Costs != nil && rapid.IntRange(0, 4).Draw(t, "min") == 0 {
		a.Min = make([]int64, len(a.Costs))
		for i := range a.Min {
			a.Min[i] = rapid.Int64Range(0, a.Costs[i]).Draw(t, "min")
		}
	}
	a.DryRun = a.Key == "" && rapid.IntRange(0, 7).Draw(t, "dry") == 0
	owner[a.ID] = a
	return a
}

// TestModelAgrees runs random policies, asks, verbs, batches, policy changes and clock moves on Redis and on the model:
// every answer is the same to the microsecond.
func TestModelAgrees(t *testing.T) {
	t.Parallel()
	backends(t, func(t *testing.T, client redis.UniversalClient) {
		name, runs := redistest.Name(t), 0
		rapid.Check(t, func(rt *rapid.T) {
			runs++
			modelAgrees(rt, client, name+"-"+strconv.Itoa(runs))
		})
	})
}

// modelAgrees is one such run, on a dependency of that name.
func modelAgrees(rt *rapid.T, client redis.UniversalClient, name string) {
	w := newWorld(rt, client, name, drawLimits(rt)...)
	defer w.close()
	var ids []string
	owner := map[string]Ask{}
	for range rapid.IntRange(1, 25).Draw(rt, "steps") {
		switch rapid.IntRange(0, 9).Draw(rt, "step") {
		case 0:
			w.install(drawChange(rt, w.limits), false)
		case 1:
			w.move(-rapid.Int64Range(0, 7_200_000_000).Draw(rt, "back"))
		case 2, 3:
			w.move(rapid.Int64Range(0, 100_000_000).Draw(rt, "ahead"))
		case 4:
			w.move(rapid.Int64Range(0, 3_000_000).Draw(rt, "tick"))
		case 5:
			n := rapid.IntRange(2, 4).Draw(rt, "group")
			c := &call{group: true}
			dry := rapid.Bool().Draw(rt, "dry")
			for len(c.asks) < n {
				a := w.drawAsk(rt, ids, owner)
				if a.Verb == Take || a.Verb == Reserve {
					a.DryRun = dry && a.Key == ""
					a.Key = ""
					c.asks = append(c.asks, a)
				}
			}
			for i := range c.asks {
				c.asks[i].DryRun = c.asks[0].DryRun
			}
			w.both(c)
		default:
			n := rapid.IntRange(1, 6).Draw(rt, "batch")
			batch := make([]*call, n)
			for i := range batch {
				batch[i] = callOf(w.drawAsk(rt, ids, owner))
			}
			w.both(batch...)
		}
		// Nobody knows an id before its answer.
		for id := range owner {
			if !slices.Contains(ids, id) {
				ids = append(ids, id)
			}
		}
		slices.Sort(ids)
	}
}
