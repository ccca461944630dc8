package bucket_test

import (
	"testing"
	"time"
	_ "time/tzdata"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/sluicehq/sluice/bucket"
)

func zone(tb testing.TB, name string) *time.Location {
	tb.Helper()
	loc, err := time.LoadLocation(name)
	require.NoError(tb, err)
	return loc
}

// TestWindows holds the windows at an instant against the calendar. Instants are in UTC; a window is three of them.
func TestWindows(t *testing.T) {
	t.Parallel()
	day := func(at time.Duration) bucket.Calendar { return bucket.Calendar{Every: bucket.Day, StartsAt: at} }
	month := func(d int) bucket.Calendar { return bucket.Calendar{Every: bucket.Month, DayOfMonth: d} }
	hour := bucket.Calendar{Every: bucket.Hour}
	for _, tc := range []struct {
		name, zone           string
		cal                  bucket.Calendar
		at, start, end, next string
	}{
		{"a plain day", "UTC", day(0), "2026-05-05T12:00:00Z", "2026-05-05T00:00:00Z", "2026-05-06T00:00:00Z", "2026-05-07T00:00:00Z"},
		{"its first instant", "UTC", day(0), "2026-05-05T00:00:00Z", "2026-05-05T00:00:00Z", "2026-05-06T00:00:00Z", "2026-05-07T00:00:00Z"},
		{"its last instant", "UTC", day(0), "2026-05-05T23:59:59.999999999Z", "2026-05-05T00:00:00Z", "2026-05-06T00:00:00Z", "2026-05-07T00:00:00Z"},
		{"no location is UTC", "", day(0), "2026-05-05T12:00:00Z", "2026-05-05T00:00:00Z", "2026-05-06T00:00:00Z", "2026-05-07T00:00:00Z"},

		{"New York, 23 hours", "America/New_York", day(0), "2026-03-08T12:00:00Z", "2026-03-08T05:00:00Z", "2026-03-09T04:00:00Z", "2026-03-10T04:00:00Z"},
		{"New York, 25 hours", "America/New_York", day(0), "2026-11-01T12:00:00Z", "2026-11-01T04:00:00Z", "2026-11-02T05:00:00Z", "2026-11-03T05:00:00Z"},
		{"New York, 02:30 that does not exist", "America/New_York", day(150 * time.Minute), "2026-03-08T12:00:00Z", "2026-03-08T07:00:00Z", "2026-03-09T06:30:00Z", "2026-03-10T06:30:00Z"},
		{"New York, 01:30 that comes twice", "America/New_York", day(90 * time.Minute), "2026-11-01T06:00:00Z", "2026-11-01T05:30:00Z", "2026-11-02T06:30:00Z", "2026-11-03T06:30:00Z"},
		{"Berlin, 23 hours", "Europe/Berlin", day(0), "2026-03-29T12:00:00Z", "2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z", "2026-03-30T22:00:00Z"},
		{"Berlin, 25 hours", "Europe/Berlin", day(0), "2026-10-25T12:00:00Z", "2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z", "2026-10-26T23:00:00Z"},
		{"Berlin, 02:00 that does not exist", "Europe/Berlin", day(2 * time.Hour), "2026-03-29T12:00:00Z", "2026-03-29T01:00:00Z", "2026-03-30T00:00:00Z", "2026-03-31T00:00:00Z"},
		{"Sao Paulo, no midnight", "America/Sao_Paulo", day(0), "2018-11-04T12:00:00Z", "2018-11-04T03:00:00Z", "2018-11-05T02:00:00Z", "2018-11-06T02:00:00Z"},
		{"Sao Paulo, 23:00 twice", "America/Sao_Paulo", day(23 * time.Hour), "2019-02-17T01:30:00Z", "2019-02-17T01:00:00Z", "2019-02-18T02:00:00Z", "2019-02-19T02:00:00Z"},
		{"Apia, before the day that was skipped", "Pacific/Apia", day(0), "2011-12-30T09:59:59Z", "2011-12-29T10:00:00Z", "2011-12-30T10:00:00Z", "2011-12-31T10:00:00Z"},
		{"Apia, after it", "Pacific/Apia", day(0), "2011-12-30T10:00:00Z", "2011-12-30T10:00:00Z", "2011-12-31T10:00:00Z", "2012-01-01T10:00:00Z"},
		{"Kathmandu", "Asia/Kathmandu", day(0), "2026-05-05T18:14:59Z", "2026-05-04T18:15:00Z", "2026-05-05T18:15:00Z", "2026-05-06T18:15:00Z"},

		{"week from Monday", "UTC", bucket.Calendar{Every: bucket.Week, Weekday: time.Monday}, "2026-05-10T12:00:00Z", "2026-05-04T00:00:00Z", "2026-05-11T00:00:00Z", "2026-05-18T00:00:00Z"},
		{"week from Sunday", "UTC", bucket.Calendar{Every: bucket.Week, Weekday: time.Sunday}, "2026-05-10T12:00:00Z", "2026-05-10T00:00:00Z", "2026-05-17T00:00:00Z", "2026-05-24T00:00:00Z"},
		{"week from Saturday noon", "UTC", bucket.Calendar{Every: bucket.Week, Weekday: time.Saturday, StartsAt: 12 * time.Hour}, "2026-05-09T11:59:59Z", "2026-05-02T12:00:00Z", "2026-05-09T12:00:00Z", "2026-05-16T12:00:00Z"},
		{"week with clock change", "Europe/Berlin", bucket.Calendar{Every: bucket.Week, Weekday: time.Monday}, "2026-03-29T12:00:00Z", "2026-03-22T23:00:00Z", "2026-03-29T22:00:00Z", "2026-04-05T22:00:00Z"},

		{"January", "UTC", month(0), "2026-01-31T12:00:00Z", "2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z", "2026-03-01T00:00:00Z"},
		{"February of 28", "UTC", month(1), "2026-02-28T12:00:00Z", "2026-02-01T00:00:00Z", "2026-03-01T00:00:00Z", "2026-04-01T00:00:00Z"},
		{"February of 29", "UTC", month(1), "2028-02-29T12:00:00Z", "2028-02-01T00:00:00Z", "2028-03-01T00:00:00Z", "2028-04-01T00:00:00Z"},
		{"century without a leap year", "UTC", month(1), "2100-02-28T12:00:00Z", "2100-02-01T00:00:00Z", "2100-03-01T00:00:00Z", "2100-04-01T00:00:00Z"},
		{"April of 30", "UTC", month(1), "2026-04-30T23:59:59Z", "2026-04-01T00:00:00Z", "2026-05-01T00:00:00Z", "2026-06-01T00:00:00Z"},
		{"billing day 31 in January", "UTC", month(31), "2026-01-31T00:00:00Z", "2026-01-31T00:00:00Z", "2026-02-28T00:00:00Z", "2026-03-31T00:00:00Z"},
		{"billing day 31 in February", "UTC", month(31), "2026-02-28T00:00:00Z", "2026-02-28T00:00:00Z", "2026-03-31T00:00:00Z", "2026-04-30T00:00:00Z"},
		{"billing day 31 in February of 29", "UTC", month(31), "2028-02-28T23:59:59Z", "2028-01-31T00:00:00Z", "2028-02-29T00:00:00Z", "2028-03-31T00:00:00Z"},
		{"billing day 30 in February", "UTC", month(30), "2026-03-01T00:00:00Z", "2026-02-28T00:00:00Z", "2026-03-30T00:00:00Z", "2026-04-30T00:00:00Z"},
		{"billing day 15 over the year's end", "UTC", month(15), "2027-01-14T23:59:59Z", "2026-12-15T00:00:00Z", "2027-01-15T00:00:00Z", "2027-02-15T00:00:00Z"},
		{"month of New York", "America/New_York", month(1), "2026-03-15T00:00:00Z", "2026-03-01T05:00:00Z", "2026-04-01T04:00:00Z", "2026-05-01T04:00:00Z"},
		{"month that begins at noon", "UTC", bucket.Calendar{Every: bucket.Month, DayOfMonth: 31, StartsAt: 12 * time.Hour}, "2026-02-28T11:59:59Z", "2026-01-31T12:00:00Z", "2026-02-28T12:00:00Z", "2026-03-31T12:00:00Z"},

		{"minute", "Asia/Kathmandu", bucket.Calendar{Every: bucket.Minute}, "2026-05-05T12:34:56Z", "2026-05-05T12:34:00Z", "2026-05-05T12:35:00Z", "2026-05-05T12:36:00Z"},
		{"last day of a leap year far ahead", "Australia/Lord_Howe", hour, "2040-12-31T00:20:00Z", "2040-12-31T00:00:00Z", "2040-12-31T01:00:00Z", "2040-12-31T02:00:00Z"},
		{"hour of Kathmandu", "Asia/Kathmandu", hour, "2026-05-05T12:34:56Z", "2026-05-05T12:15:00Z", "2026-05-05T13:15:00Z", "2026-05-05T14:15:00Z"},
		{"New York, the hour before the gap", "America/New_York", hour, "2026-03-08T06:59:59Z", "2026-03-08T06:00:00Z", "2026-03-08T07:00:00Z", "2026-03-08T08:00:00Z"},
		{"New York, the hour that comes twice", "America/New_York", hour, "2026-11-01T05:59:59Z", "2026-11-01T05:00:00Z", "2026-11-01T06:00:00Z", "2026-11-01T07:00:00Z"},
		{"New York, its second time", "America/New_York", hour, "2026-11-01T06:00:00Z", "2026-11-01T06:00:00Z", "2026-11-01T07:00:00Z", "2026-11-01T08:00:00Z"},
		{"Lord Howe, 90 minutes in autumn", "Australia/Lord_Howe", hour, "2026-04-04T15:00:00Z", "2026-04-04T14:00:00Z", "2026-04-04T15:30:00Z", "2026-04-04T16:30:00Z"},
		{"Lord Howe, 30 minutes in spring", "Australia/Lord_Howe", hour, "2026-10-03T15:45:00Z", "2026-10-03T15:30:00Z", "2026-10-03T16:00:00Z", "2026-10-03T17:00:00Z"},
		{"Apia, the hour after the day that was skipped", "Pacific/Apia", hour, "2011-12-30T10:00:00Z", "2011-12-30T10:00:00Z", "2011-12-30T11:00:00Z", "2011-12-30T12:00:00Z"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if tc.zone != "" {
				tc.cal.Location = zone(t, tc.zone)
			}
			at, err := time.Parse(time.RFC3339Nano, tc.at)
			require.NoError(t, err)
			start, end, next := tc.cal.Windows(at)
			for i, got := range []time.Time{start, end, next} {
				require.Equal(t, []string{tc.start, tc.end, tc.next}[i], got.UTC().Format(time.RFC3339Nano))
			}
		})
	}
}

func oddZones() []string {
	return []string{
		"UTC", "Pacific/Apia", "Australia/Lord_Howe", "Asia/Kathmandu", "America/New_York", "Europe/Berlin", "Asia/Gaza",
		"America/Sao_Paulo", "Africa/Casablanca", "Pacific/Chatham", "America/St_Johns", "Asia/Tehran", "Europe/Dublin",
		"Antarctica/Troll", "America/Juneau", "Asia/Manila", "Pacific/Kwajalein", "Africa/Monrovia", "Asia/Pyongyang",
		"America/Caracas", "Pacific/Kiritimati", "Africa/El_Aaiun", "America/Scoresbysund", "Europe/Amsterdam",
	}
}

// TestWindowsFollowEachOther: whatever the zone and the instant, the window holds it, every instant of a window gives
// the same window, and the next one is the one that was announced.
func TestWindowsFollowEachOther(t *testing.T) {
	t.Parallel()
	zones := map[string]*time.Location{}
	for _, name := range oddZones() {
		zones[name] = zone(t, name)
	}
	rapid.Check(t, func(t *rapid.T) {
		loc := zones[rapid.SampledFrom(oddZones()).Draw(t, "zone")]
		c := bucket.Calendar{
			Every:      rapid.SampledFrom([]bucket.Period{bucket.Minute, bucket.Hour, bucket.Day, bucket.Week, bucket.Month}).Draw(t, "every"),
			Location:   loc,
			StartsAt:   time.Duration(rapid.IntRange(0, 24*60-1).Draw(t, "starts")) * time.Minute,
			Weekday:    time.Weekday(rapid.IntRange(0, 6).Draw(t, "weekday")),
			DayOfMonth: rapid.IntRange(0, 31).Draw(t, "day"),
		}
		at := time.Unix(rapid.Int64Range(-4_000_000_000, 5_000_000_000).Draw(t, "unix"), rapid.Int64Range(0, 999_999_999).Draw(t, "ns"))
		if rapid.Bool().Draw(t, "near a clock change") {
			if from, _ := at.In(loc).ZoneBounds(); !from.IsZero() {
				at = from.Add(time.Duration(rapid.Int64Range(-int64(3*time.Hour), int64(3*time.Hour)).Draw(t, "off")))
			}
		}
		start, end, next := c.Windows(at)
		require.False(t, at.Before(start), "%v before %v", at, start)
		require.True(t, at.Before(end), "%v not before %v", at, end)
		require.True(t, end.Before(next))
		bounds := map[bucket.Period][2]time.Duration{
			bucket.Minute: {time.Second, 2 * time.Minute},
			bucket.Hour:   {time.Minute, 2 * time.Hour},
			bucket.Day:    {time.Minute, 50 * time.Hour},
			bucket.Week:   {5 * 24 * time.Hour, 9 * 24 * time.Hour},
			bucket.Month:  {26 * 24 * time.Hour, 33 * 24 * time.Hour},
		}[c.Every]
		require.GreaterOrEqual(t, end.Sub(start), bounds[0])
		require.LessOrEqual(t, end.Sub(start), bounds[1])

		within := start.Add(time.Duration(rapid.Int64Range(0, int64(end.Sub(start))-1).Draw(t, "within")))
		for _, other := range []time.Time{start, within, end.Add(-1)} {
			s, e, n := c.Windows(other)
			require.True(t, s.Equal(start) && e.Equal(end) && n.Equal(next), "%v gives %v %v %v, %v gave %v %v %v", other, s, e, n, at, start, end, next)
		}
		s, e, _ := c.Windows(end)
		require.True(t, s.Equal(end), "the window after begins %v, not %v", s, end)
		require.True(t, e.Equal(next), "the window after ends %v, not %v", e, next)
		_, e, n := c.Windows(start.Add(-1))
		require.True(t, e.Equal(start) && n.Equal(end), "the window before ends %v %v, not %v %v", e, n, start, end)
	})
}

func TestWindowsDoNotAllocate(t *testing.T) { //nolint:paralleltest // counts allocations
	loc := zone(t, "America/New_York")
	at := time.Date(2026, 3, 8, 12, 0, 0, 0, time.UTC)
	for _, every := range []bucket.Period{bucket.Minute, bucket.Hour, bucket.Day, bucket.Week, bucket.Month} {
		c := bucket.Calendar{Every: every, Location: loc}
		require.Zero(t, testing.AllocsPerRun(100, func() { c.Windows(at) }), "%s", every)
	}
}

func BenchmarkWindows(b *testing.B) {
	at := time.Date(2026, 3, 8, 12, 0, 0, 0, time.UTC)
	for _, every := range []bucket.Period{bucket.Minute, bucket.Hour, bucket.Day, bucket.Week, bucket.Month} {
		c := bucket.Calendar{Every: every, Location: zone(b, "America/New_York")}
		b.Run(string(every), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				c.Windows(at)
			}
		})
	}
}
