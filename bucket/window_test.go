package bucket

import (
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluicehq/sluice/internal/redistest"
)

func at(t *testing.T, text string) time.Time {
	t.Helper()
	parsed, err := time.Parse(time.RFC3339, text)
	require.NoError(t, err)
	return parsed
}

func calendar(t *testing.T, zone string, every Period, day int) Calendar {
	t.Helper()
	loc, err := time.LoadLocation(zone)
	require.NoError(t, err)
	return Calendar{Every: every, Location: loc, Weekday: time.Monday, DayOfMonth: day}
}

func quotaLimit(size int64, every Calendar) *Limit {
	return &Limit{Name: "q", Kind: Quota, Per: PerDependency, Unit: Requests, OnExceeded: Reject, Size: size, Every: every}
}

// goTo moves the clock to an instant.
func (w *world) goTo(t time.Time) { w.move(t.UnixMicro() - w.now) }

// TestP4WindowsTurn: an exhausted quota admits again at the instant at which its window ends on the calendar, which it
// told, and not a microsecond before; however far this process's idea of the time is off.
func TestP4WindowsTurn(t *testing.T) {
	t.Parallel()
	const ny, berlin = "America/New_York", "Europe/Berlin"
	for _, row := range []struct {
		zone           string
		every          Period
		day            int
		from, end, two string // two: the end of the window after
	}{
		{ny, Day, 0, "2026-11-01T04:00:00Z", "2026-11-02T05:00:00Z", "2026-11-03T05:00:00Z"}, // 25 hours
		{ny, Day, 0, "2027-03-14T05:00:00Z", "2027-03-15T04:00:00Z", "2027-03-16T04:00:00Z"}, // 23 hours
		{berlin, Day, 0, "2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z", "2026-10-26T23:00:00Z"},
		{berlin, Day, 0, "2027-03-28T12:00:00Z", "2027-03-28T22:00:00Z", "2027-03-29T22:00:00Z"},
		{berlin, Hour, 0, "2026-10-25T00:59:00Z", "2026-10-25T01:00:00Z", "2026-10-25T02:00:00Z"}, // 2 o'clock comes twice
		{"Australia/Lord_Howe", Hour, 0, "2027-04-03T14:10:00Z", "2027-04-03T15:30:00Z", "2027-04-03T16:30:00Z"},
		{ny, Week, 0, "2026-10-27T00:00:00Z", "2026-11-02T05:00:00Z", "2026-11-09T05:00:00Z"},
		{ny, Month, 1, "2026-11-01T05:30:00Z", "2026-12-01T05:00:00Z", "2027-01-01T05:00:00Z"},
		{"UTC", Month, 1, "2027-02-28T23:59:59Z", "2027-03-01T00:00:00Z", "2027-04-01T00:00:00Z"},
		{"UTC", Month, 28, "2027-02-27T12:00:00Z", "2027-02-28T00:00:00Z", "2027-03-28T00:00:00Z"},
		{"UTC", Month, 29, "2027-01-29T00:00:00Z", "2027-02-28T00:00:00Z", "2027-03-29T00:00:00Z"},
		{"UTC", Month, 29, "2028-01-29T00:00:00Z", "2028-02-29T00:00:00Z", "2028-03-29T00:00:00Z"},
		{"UTC", Month, 30, "2027-02-28T00:00:00Z", "2027-03-30T00:00:00Z", "2027-04-30T00:00:00Z"},
		{"UTC", Month, 31, "2027-01-31T00:00:00Z", "2027-02-28T00:00:00Z", "2027-03-31T00:00:00Z"},
		{"UTC", Month, 31, "2027-03-31T09:00:00Z", "2027-04-30T00:00:00Z", "2027-05-31T00:00:00Z"},
		{ny, Month, 31, "2027-02-28T05:00:00Z", "2027-03-31T04:00:00Z", "2027-04-30T04:00:00Z"},
		{"UTC", Minute, 0, "2026-12-01T00:00:30Z", "2026-12-01T00:01:00Z", "2026-12-01T00:02:00Z"},
	} {
		t.Run(row.zone+string(row.every)+row.from, func(t *testing.T) {
			t.Parallel()
			// What this process takes the time for: the windows that it sends may be stale, which no caller notices.
			for _, off := range []time.Duration{0, -4 * time.Minute, 4 * time.Minute, -100 * 24 * time.Hour, 100 * 24 * time.Hour} {
				w := newWorld(t, redistest.Shared(t), redistest.Name(t), quotaLimit(3, calendar(t, row.zone, row.every, row.day)))
				ask := func() Answer {
					w.store.clock.observe(time.UnixMicro(w.now).Add(off))
					ans := w.take(1)
					require.WithinDuration(t, time.UnixMicro(w.now), w.store.Now(), max(off.Abs(), time.Minute))
					return ans
				}
				begin, end, two := at(t, row.from), at(t, row.end), at(t, row.two)
				w.goTo(begin)
				for left := int64(2); left >= 0; left-- {
					ans := ask()
					require.Equal(t, Admitted, ans.Outcome)
					require.Equal(t, State{Remaining: left, Reset: end.Sub(begin)}, ans.Limits[0])
				}
				ans := ask()
				require.Equal(t, Refused, ans.Outcome)
				require.Equal(t, end.Sub(begin), ans.Available)
				w.goTo(end.Add(-time.Microsecond))
				require.Equal(t, Refused, ask().Outcome, "a microsecond early")
				w.goTo(end)
				ans = ask()
				require.Equal(t, Admitted, ans.Outcome, "as the window turns")
				require.Equal(t, State{Remaining: 2, Reset: two.Sub(end)}, ans.Limits[0])
				w.close()
			}
		})
	}
}

// TestStaleWindowsAreRepeated: one call tells that the windows are stale, the next one decides, and afterwards this
// process knows the time.
func TestStaleWindowsAreRepeated(t *testing.T) {
	t.Parallel()
	w := newWorld(t, redistest.Shared(t), redistest.Name(t), quotaLimit(3, calendar(t, "UTC", Minute, 0)))
	defer w.close()
	calls := 0
	w.store.opts.Observe = func(string, time.Duration, error) { calls++ }
	for i, off := range []time.Duration{-7 * time.Minute, 7 * time.Minute} {
		calls = 0
		w.store.clock.observe(time.UnixMicro(w.now).Add(off))
		require.Equal(t, int64(2-i), w.take(1).Limits[0].Remaining)
		require.Equal(t, 2, calls)
		require.WithinDuration(t, time.UnixMicro(w.now), w.store.Now(), 30*time.Second)
	}
}

// TestP12ZoneChangeKeepsCounts: a changed zone, start or period carries what was counted over as long as the window that
// it was counted in still runs.
func TestP12ZoneChangeKeepsCounts(t *testing.T) {
	t.Parallel()
	backends(t, func(t *testing.T, client redis.UniversalClient) {
		noon := calendar(t, "UTC", Day, 0)
		noon.StartsAt = 12 * time.Hour
		for i, to := range []Calendar{
			calendar(t, "America/New_York", Day, 0), calendar(t, "Asia/Kathmandu", Day, 0), noon, calendar(t, "UTC", Month, 1),
			calendar(t, "UTC", Hour, 0), calendar(t, "Pacific/Apia", Week, 0),
		} {
			for _, when := range []string{"2026-12-02T00:10:00Z", "2026-12-02T11:59:00Z", "2026-12-02T18:30:00Z"} {
				w := newWorld(t, client, redistest.Name(t), quotaLimit(10, calendar(t, "UTC", Day, 0)))
				w.goTo(at(t, when))
				require.Equal(t, Admitted, w.take(8).Outcome)
				w.install([]*Limit{quotaLimit(10, to)}, false)
				require.Equal(t, int64(2), w.view("default", "")[0].Remaining, "zone %d at %s", i, when)
				require.Equal(t, Refused, w.take(3).Outcome)
				require.Equal(t, Admitted, w.take(2).Outcome)
				w.install([]*Limit{quotaLimit(10, calendar(t, "UTC", Day, 0))}, false)
				require.Zero(t, w.view("default", "")[0].Remaining, "and back")
				w.close()
			}
		}
	})
}

// TestP11HourlySteps: TIME that steps by an hour each hour, back and forth, freezes no quota for longer than its window
// and the step, and mints nothing: a window of the day or the minute is spent once more only where TIME entered another.
func TestP11HourlySteps(t *testing.T) {
	t.Parallel()
	const minutes, perMinute, perDay = 50 * 60, 5, 3000
	minute, day := quotaLimit(perMinute, calendar(t, "UTC", Minute, 0)), quotaLimit(perDay, calendar(t, "America/New_York", Day, 0))
	minute.Name, day.Name = "m", "d"
	for _, first := range []int64{-1, 1} {
		t.Run(strconv.FormatInt(first, 10), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, redistest.Shared(t), redistest.Name(t), minute, day)
			defer w.close()
			step := first * time.Hour.Microseconds()
			total, dry, worst := int64(0), 0, 0
			for i := range minutes {
				if i > 0 && i%60 == 0 {
					w.move(step)
					step = -step
				}
				var batch []*call
				for range perMinute + 3 {
					batch = append(batch, callOf(Ask{Set: w.set("default"), ID: w.id()}))
				}
				admitted, daily := int64(0), false
				for _, r := range w.both(batch...) {
					if r.answers[0].Outcome == Admitted {
						admitted++
					}
					daily = daily || r.answers[0].Limits[1].Remaining == 0
				}
				require.LessOrEqual(t, admitted, int64(perMinute))
				total += admitted
				if dry++; admitted > 0 || daily {
					dry = 0
				}
				worst = max(worst, dry)
				w.move(time.Minute.Microseconds())
			}
			require.LessOrEqual(t, worst, 2, "minutes without any")
			require.LessOrEqual(t, total, int64(4*perDay), "50 hours touch three days; a step back over midnight repeats one at most")
			require.GreaterOrEqual(t, total, int64(2*perDay))
		})
	}
}

// TestNoDoubleSpendAtTheEdge: what was spent right before the edge of a window is not to be had again right after it, but
// in a calendar quota, which is what that says. CASES 27.
func TestNoDoubleSpendAtTheEdge(t *testing.T) {
	t.Parallel()
	backends(t, func(t *testing.T, client redis.UniversalClient) {
		for _, row := range []struct {
			limit *Limit
			after int
		}{
			{&Limit{Name: "w", Kind: SlidingWindow, Per: PerDependency, Unit: Requests, Size: 100, Window: time.Minute}, 0},
			{&Limit{Name: "l", Kind: SlidingLog, Per: PerDependency, Unit: Requests, Size: 100, Window: time.Minute}, 0},
			{tokenLimit(100, "100/min"), 0},
			{quotaLimit(100, Calendar{Every: Minute}), 100},
		} {
			w := newWorld(t, client, redistest.Name(t), row.limit)
			w.move(59_900_000)
			fill := func() (admitted int) {
				var batch []*call
				for range 100 {
					batch = append(batch, callOf(Ask{Set: w.set("default"), ID: w.id()}))
				}
				for _, r := range w.both(batch...) {
					if r.answers[0].Outcome == Admitted {
						admitted++
					}
				}
				return admitted
			}
			require.Equal(t, 100, fill(), row.limit.Kind)
			w.move(200_000)
			require.Equal(t, row.after, fill(), row.limit.Kind)
			w.close()
		}
	})
}

// TestSteadyAsking: an ask each 100 ms against three a second, and each 1 ms against five in 1.3 s: as many are admitted as
// the limit says, and never more at an edge. CASES 18 and 29.
func TestSteadyAsking(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		size   int64
		window time.Duration
		every  time.Duration
		span   time.Duration
		burst  int // asks that come together 1 ms before an edge
		want   int64
	}{
		{3, time.Second, 100 * time.Millisecond, time.Minute, 0, 180},
		{5, 1300 * time.Millisecond, 10 * time.Millisecond, 13 * time.Second, 10, 50},
	} {
		for _, l := range []*Limit{
			{Name: "b", Kind: TokenBucket, Per: PerDependency, Unit: Requests, Size: row.size, Initial: row.size, Refill: reduced(row.size, row.window.Microseconds())},
			{Name: "w", Kind: SlidingWindow, Per: PerDependency, Unit: Requests, Size: row.size, Window: row.window},
			{Name: "l", Kind: SlidingLog, Per: PerDependency, Unit: Requests, Size: row.size, Window: row.window},
		} {
			t.Run(strconv.Itoa(int(row.size))+string(l.Kind), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, redistest.Shared(t), redistest.Name(t), l)
				defer w.close()
				var starts []int64
				ask := func() {
					if w.take(1).Outcome == Admitted {
						starts = append(starts, w.now)
					}
				}
				for end := w.now + row.span.Microseconds(); w.now < end; w.move(row.every.Microseconds()) {
					ask()
					if in := (w.now - epoch) % row.window.Microseconds(); row.burst > 0 && in+row.every.Microseconds() >= row.window.Microseconds() {
						w.move(row.window.Microseconds() - 1000 - in)
						for range row.burst {
							ask()
						}
					}
				}
				most := row.size
				if l.Kind != SlidingLog {
					most *= 2 // a bucket has its burst, a counter takes the older window for spread evenly (WorstCase)
				}
				for i := range starts {
					n := int64(0)
					for _, s := range starts[i:] {
						if s < starts[i]+row.window.Microseconds() {
							n++
						}
					}
					require.LessOrEqual(t, n, most)
				}
				least := row.want
				if l.Kind == SlidingWindow {
					least = row.want * (row.size - 1) / row.size // where the older window's weight falls short of a whole ask
				}
				require.GreaterOrEqual(t, int64(len(starts)), least-row.size)
				require.LessOrEqual(t, int64(len(starts)), row.want+row.size)
			})
		}
	}
}
