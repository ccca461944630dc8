package bucket

import (
	"cmp"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/sluicehq/sluice/internal/redistest"
)

func (w *world) view(class, tenant string) []State {
	return w.ask(Ask{Set: w.set(class), Tenant: tenant, Verb: View}).Limits
}

// of asks once for the tenant, with a cost of each unit or the default.
func (w *world) of(tenant string, costs ...int64) Answer {
	a := Ask{Set: w.set("default"), Tenant: tenant, ID: w.id(), SettleWithin: time.Minute}
	if len(costs) > 0 {
		a.Costs = costs
	}
	return w.ask(a)
}

// TestP3AllOrNothing: what one limit refuses leaves no trace in any other, whatever their kinds and order, and the
// refusal names the limit that refused.
func TestP3AllOrNothing(t *testing.T) {
	t.Parallel()
	backends(t, func(t *testing.T, client redis.UniversalClient) {
		wide := tokenLimit(100, "100/min")
		wide.Name = "site"
		narrow := map[Kind]*Limit{
			TokenBucket:   {Name: "user", Kind: TokenBucket, Per: PerTenant, Unit: Requests, Size: 5, Initial: 5, Refill: rate("5/min")},
			Concurrency:   {Name: "user", Kind: Concurrency, Per: PerTenant, Size: 5, Hold: time.Hour},
			Quota:         {Name: "user", Kind: Quota, Per: PerTenant, Unit: Requests, Size: 5, Every: Calendar{Every: Day, Location: time.UTC}},
			SlidingWindow: {Name: "user", Kind: SlidingWindow, Per: PerTenant, Unit: Requests, Size: 5, Window: time.Minute},
			SlidingLog:    {Name: "user", Kind: SlidingLog, Per: PerTenant, Unit: Requests, Size: 5, Window: time.Minute},
		}
		for kind, n := range narrow {
			for _, order := range [][]*Limit{{wide, n}, {n, wide}} {
				w := newWorld(t, client, redistest.Name(t), order...)
				for i := range 200 {
					ans := w.of("noisy")
					if i < 5 {
						require.Equal(t, Admitted, ans.Outcome, kind)
						continue
					}
					require.Equal(t, Refused, ans.Outcome, kind)
					require.Equal(t, "user", order[ans.BlockedBy].Name)
				}
				for i, st := range w.view("default", "other") {
					if order[i].Name == "site" {
						require.Equal(t, int64(95), st.Remaining, kind)
					}
				}
				require.Equal(t, Admitted, w.of("other").Outcome)
				w.close()
			}
		}
	})
}

// TestP3RefusedCostsNothing: a refused ask of 5 with 2 left leaves the 2, in every kind.
func TestP3RefusedCostsNothing(t *testing.T) {
	t.Parallel()
	backends(t, func(t *testing.T, client redis.UniversalClient) {
		for _, l := range []*Limit{
			tokenLimit(10, "1/d"),
			{Name: "q", Kind: Quota, Per: PerDependency, Unit: Requests, Size: 10, Every: Calendar{Every: Month, Location: time.UTC}},
			{Name: "w", Kind: SlidingWindow, Per: PerDependency, Unit: Requests, Size: 10, Window: time.Hour},
			{Name: "l", Kind: SlidingLog, Per: PerDependency, Unit: Requests, Size: 10, Window: time.Hour},
		} {
			w := newWorld(t, client, redistest.Name(t), l)
			require.Equal(t, Admitted, w.of("", 8).Outcome, l.Kind)
			require.Equal(t, Refused, w.of("", 5).Outcome, l.Kind)
			require.Equal(t, Admitted, w.of("", 2).Outcome, l.Kind)
			require.Equal(t, Refused, w.of("", 1).Outcome, l.Kind)
			w.close()
		}
		// A refusal for concurrency leaves the only token of the minute.
		w := newWorld(t, client, redistest.Name(t), tokenLimit(2, "1/d"), &Limit{Name: "c", Kind: Concurrency, Per: PerDependency, Size: 1, Hold: time.Hour})
		a := w.of("")
		require.Equal(t, Admitted, a.Outcome)
		require.Equal(t, Refused, w.of("").Outcome)
		require.Equal(t, Admitted, w.ask(Ask{Set: w.set("default"), Verb: Release, ID: a.ID}).Outcome)
		require.Equal(t, Admitted, w.of("").Outcome)
		w.close()
	})
}

// TestP4HardQuotas: no window of a calendar quota ever holds more than its limit, over windows of 23, 24 and 25 hours,
// month ends and reservations that fall into the next window; and each window can be used up.
func TestP4HardQuotas(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		zone  string
		every Period
		day   int
		from  string
		span  time.Duration
	}{
		{"America/New_York", Day, 0, "2026-10-31T12:00:00Z", 72 * time.Hour}, // a day of 25 hours
		{"America/New_York", Day, 0, "2027-03-13T12:00:00Z", 72 * time.Hour}, // one of 23
		{"Europe/Berlin", Day, 0, "2027-03-27T12:00:00Z", 72 * time.Hour},
		{"Australia/Lord_Howe", Hour, 0, "2027-04-03T12:00:00Z", 30 * time.Hour}, // half an hour twice
		{"UTC", Month, 31, "2027-01-30T00:00:00Z", 31 * 24 * time.Hour},
		{"UTC", Minute, 0, "2026-12-01T00:00:00Z", 30 * time.Minute},
	} {
		t.Run(row.zone+string(row.every)+row.from[:10], func(t *testing.T) {
			t.Parallel()
			loc, err := time.LoadLocation(row.zone)
			require.NoError(t, err)
			begin, err := time.Parse(time.RFC3339, row.from)
			require.NoError(t, err)
			l := &Limit{
				Name: "q", Kind: Quota, Per: PerDependency, Unit: Requests, OnExceeded: Wait, Size: 7,
				Every: Calendar{Every: row.every, Location: loc, DayOfMonth: row.day},
			}
			w := newWorld(t, redistest.Shared(t), redistest.Name(t), l)
			defer w.close()
			w.move(begin.UnixMicro() - w.now)
			count := map[time.Time]int64{}
			step := row.span / 400
			for i := 0; time.Duration(i)*step < row.span; i++ {
				a := Ask{Set: w.set("default"), ID: w.id(), Costs: []int64{1 + int64(i%3)}}
				if i%4 == 0 {
					a.Verb, a.MaxWait = Reserve, time.Minute
				}
				if ans := w.ask(a); ans.Outcome == Admitted {
					start, _, _ := l.Every.Windows(ans.Now.Add(ans.StartIn))
					count[start] += a.Costs[0]
				}
				w.move(step.Microseconds())
			}
			full := 0
			for start, n := range count {
				require.LessOrEqual(t, n, l.Size, start)
				if n >= l.Size-2 {
					full++
				}
			}
			require.GreaterOrEqual(t, full, len(count)-2)
		})
	}
}

// TestP8AvailableIsExact: for 10,000 random policies and histories, a refused ask fits after available_in and not a
// millisecond before.
func TestP8AvailableIsExact(t *testing.T) {
	t.Parallel()
	const policies = 10_000
	client, name, runs, counted := redistest.Shared(t), redistest.Name(t), 0, 0
	for counted < policies {
		rapid.Check(t, func(rt *rapid.T) {
			if counted >= policies {
				return
			}
			runs++
			refused := false
			w := newWorld(rt, client, name+"-"+strconv.Itoa(runs), drawLimits(rt)...)
			defer w.close()
			owner := map[string]Ask{}
			for range rapid.IntRange(1, 8).Draw(rt, "steps") {
				w.both(callOf(w.drawAsk(rt, nil, owner)))
				w.move(rapid.Int64Range(0, 2_000_000).Draw(rt, "ahead"))
			}
			for range 4 {
				a := w.drawAsk(rt, nil, owner)
				if a.Verb != Take && a.Verb != Reserve {
					continue
				}
				a.Key, a.DryRun = "", true
				ans := w.ask(a)
				if ans.Outcome != Refused || ans.Available == Forever {
					continue
				}
				if !refused {
					refused = true
					counted++
				}
				require.GreaterOrEqual(rt, ans.RetryAfter, ans.Available)
				now := w.now
				w.move(ans.Available.Microseconds() - 1000)
				require.Equal(rt, Refused, w.ask(a).Outcome, "a millisecond early")
				w.move(1000)
				require.Equal(rt, Admitted, w.ask(a).Outcome, "in time")
				w.move(now - w.now)
			}
		})
	}
}

// TestP8CrowdSpreads: callers refused at once who come back when told meet at most one further refusal each, whatever
// limits refuse them.
func TestP8CrowdSpreads(t *testing.T) {
	t.Parallel()
	minutely := quotaLimit(200, calendar(t, "UTC", Minute, 0))
	daily := quotaLimit(100, calendar(t, "UTC", Day, 0))
	window := &Limit{Name: "w", Kind: SlidingWindow, Per: PerDependency, Unit: Requests, Size: 100, Window: 30 * time.Second}
	log := &Limit{Name: "l", Kind: SlidingLog, Per: PerDependency, Unit: Requests, Size: 100, Window: 30 * time.Second}
	slots := &Limit{Name: "c", Kind: Concurrency, Per: PerDependency, Size: 10, Hold: 5 * time.Second}
	second := tokenLimit(50, "20/s")
	second.Name = "second"
	for name, row := range map[string]struct {
		limits   []*Limit
		crowd    int
		distinct int // how many times they are told at least
		within   time.Duration
	}{
		"bucket":           {[]*Limit{tokenLimit(10, "10/s")}, 1000, 600, 101 * time.Second},
		"two buckets":      {[]*Limit{tokenLimit(10, "10/s"), second}, 600, 550, 61 * time.Second},
		"quota":            {[]*Limit{minutely}, 400, 200, 2 * time.Minute},
		"daily quota":      {[]*Limit{daily}, 200, 100, 24*time.Hour + time.Minute},
		"bucket and quota": {[]*Limit{tokenLimit(10, "10/s"), minutely}, 400, 200, 2 * time.Minute},
		"sliding window":   {[]*Limit{window}, 250, 150, 2 * time.Minute},
		"sliding log":      {[]*Limit{log}, 250, 150, 2 * time.Minute},
		"concurrency":      {[]*Limit{slots}, 100, 90, 70 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			backends(t, func(t *testing.T, client redis.UniversalClient) {
				w := newWorld(t, client, redistest.Name(t), row.limits...)
				defer w.close()
				type caller struct {
					at       int64
					refusals int
				}
				crowd := make([]caller, row.crowd)
				begin, told := w.now, map[int64]int{}
				for i := range crowd {
					crowd[i].at = w.now
				}
				for range 4 * len(crowd) {
					i := 0
					for j := range crowd {
						if crowd[j].at >= 0 && (crowd[i].at < 0 || crowd[j].at < crowd[i].at) {
							i = j
						}
					}
					c := &crowd[i]
					if c.at < 0 {
						break
					}
					w.move(c.at - w.now)
					ans := w.redis(callOf(Ask{Set: w.set("default"), ID: w.id()}))[0].answers[0]
					if ans.Outcome == Admitted {
						c.at = -1
						continue
					}
					c.refusals++
					c.at = w.now + ans.RetryAfter.Microseconds()
					if c.refusals == 1 {
						told[c.at]++
					}
				}
				worst := slices.MaxFunc(crowd, func(a, b caller) int { return cmp.Compare(a.refusals, b.refusals) })
				require.LessOrEqual(t, worst.refusals, 2)
				require.GreaterOrEqual(t, len(told), row.distinct)
				require.Less(t, w.now-begin, row.within.Microseconds())
			})
		})
	}
}

// TestP11OneClock: TIME that steps back by an hour mints nothing and freezes nothing; one that steps forward mints one
// capacity at most.
func TestP11OneClock(t *testing.T) {
	t.Parallel()
	const hour = int64(3_600_000_000)
	for _, l := range []*Limit{
		tokenLimit(10, "10/s"),
		{Name: "m", Kind: Quota, Per: PerDependency, Unit: Requests, Size: 10, Every: Calendar{Every: Minute, Location: time.UTC}},
		{Name: "w", Kind: SlidingWindow, Per: PerDependency, Unit: Requests, Size: 10, Window: time.Second},
		{Name: "l", Kind: SlidingLog, Per: PerDependency, Unit: Requests, Size: 10, Window: time.Second},
		{Name: "c", Kind: Concurrency, Per: PerDependency, Size: 10, Hold: time.Second},
	} {
		t.Run(string(l.Kind), func(t *testing.T) {
			t.Parallel()
			for _, step := range []int64{-hour, -1_000_000, hour} {
				w := newWorld(t, redistest.Shared(t), redistest.Name(t), l)
				fill := func() (n int) {
					for range 30 {
						if w.of("").Outcome == Admitted {
							n++
						}
					}
					return n
				}
				w.move(20_000_000)
				require.Equal(t, 10, fill())
				w.move(step)
				if step < 0 {
					require.Zero(t, fill(), "minted by a step of %d", step)
				} else {
					require.Equal(t, 10, fill())
				}
				back := 0
				for range 60 {
					w.move(1_000_000)
					back += fill()
				}
				require.GreaterOrEqual(t, back, 10, "frozen by a step of %d", step)
				require.LessOrEqual(t, back, 620)
				w.close()
			}
		})
	}
}

// TestP12ChangeKeepsCounters: a changed policy takes effect at the next decision and resets nothing.
func TestP12ChangeKeepsCounters(t *testing.T) {
	t.Parallel()
	backends(t, func(t *testing.T, client redis.UniversalClient) {
		quota := func(size int64, zone string) *Limit {
			loc, err := time.LoadLocation(zone)
			require.NoError(t, err)
			return &Limit{Name: "q", Kind: Quota, Per: PerDependency, Unit: Requests, Size: size, Every: Calendar{Every: Day, Location: loc}}
		}
		w := newWorld(t, client, redistest.Name(t), tokenLimit(10, "1/d"), quota(20, "UTC"))
		defer w.close()
		for range 8 {
			require.Equal(t, Admitted, w.of("").Outcome)
		}
		old := w.set("default")
		w.install([]*Limit{tokenLimit(12, "1/d"), quota(10, "Europe/Berlin")}, false)
		st := w.view("default", "")
		require.Equal(t, int64(4), st[0].Remaining)
		require.Equal(t, int64(2), st[1].Remaining)
		_, err := w.limiter.exec([]*call{callOf(Ask{Set: old})})
		var changed *ChangedError
		require.ErrorAs(t, err, &changed)
		require.Equal(t, w.version, changed.Version)
		w.install([]*Limit{tokenLimit(4, "1/d"), quota(10, "UTC")}, false)
		require.Equal(t, Refused, w.of("").Outcome)
		renamed := tokenLimit(100, "1/d")
		renamed.Name = "renamed"
		w.install([]*Limit{renamed, quota(10, "UTC")}, false)
		require.Equal(t, Refused, w.of("").Outcome, "a renamed bucket starts empty")
	})
}

// TestP12ChangedKindCountsAnew: a limit of another kind, scope or unit under the same name is a new limit; what is left of
// the one before is not read, and a bucket begins empty.
func TestP12ChangedKindCountsAnew(t *testing.T) {
	t.Parallel()
	kinds := everyKind(PerDependency)
	backends(t, func(t *testing.T, client redis.UniversalClient) {
		for from := range kinds {
			for to := range kinds {
				for _, per := range []Per{PerDependency, PerTenant, PerClass} {
					was, is := *kinds[from], *kinds[to]
					was.Name, is.Name, is.Per = "rate", "rate", per
					if from == to && per == was.Per {
						is.Unit = "tokens"
					}
					if from == to && per == was.Per && from == Concurrency {
						continue // it counts no unit
					}
					t.Run(string(from+"-"+to)+"-"+string(per), func(t *testing.T) {
						w := newWorld(t, client, redistest.Name(t), &was)
						defer w.close()
						a := Ask{Set: w.set("default"), ID: w.id(), Class: "default"}
						require.Equal(t, Admitted, w.ask(a).Outcome)
						w.install([]*Limit{&is}, false)
						want := is.Size
						if to == TokenBucket {
							want = 0
						}
						require.Equal(t, want, w.view("default", "")[0].Remaining)
						w.move(3_000_000)
						require.Equal(t, Admitted, w.of("").Outcome)
						w.install([]*Limit{&was}, false)
						w.of("")
						w.ask(Ask{Set: w.set("default"), Verb: Release, ID: a.ID})
					})
				}
			}
		}
	})
}

// TestLostStateStartsEmpty: where the hash of a dependency's limits is gone, its buckets are empty and fill from then on,
// whichever of them is looked at first, and also where the policy is installed again meanwhile.
func TestLostStateStartsEmpty(t *testing.T) {
	t.Parallel()
	backends(t, func(t *testing.T, client redis.UniversalClient) {
		one, two := tokenLimit(5, "1/s"), tokenLimit(5, "1/s")
		two.Name = "two"
		w := newWorld(t, client, redistest.Name(t), one, two)
		defer w.close()
		require.NoError(t, client.Del(t.Context(), StateKey(w.name)).Err())
		remaining := func() (left []int64) {
			for _, st := range w.redis(callOf(Ask{Set: w.set("default"), Verb: View}))[0].answers[0].Limits {
				left = append(left, st.Remaining)
			}
			return left
		}
		require.Equal(t, []int64{0, 0}, remaining())
		require.Equal(t, Refused, w.redis(callOf(Ask{Set: w.set("default"), ID: w.id()}))[0].answers[0].Outcome)
		w.move(3_000_000)
		require.Equal(t, []int64{3, 3}, remaining())
		for i := range 4 {
			require.Equal(t, i < 3, w.redis(callOf(Ask{Set: w.set("default"), ID: w.id()}))[0].answers[0].Outcome == Admitted)
		}
	})
}
