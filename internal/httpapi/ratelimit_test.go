package httpapi_test

import (
	"context"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/dunglas/httpsfv"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/sluicehq/sluice/admission"
	"github.com/sluicehq/sluice/bucket"
)

// limitItem is one member of RateLimit or RateLimit-Policy with its parameters, all of whose types were checked.
type limitItem struct {
	name   string
	params map[string]any
}

// fields parses a header as FORMATS wants it: a list of strings whose parameters are strings or non-negative integers.
func fields(t require.TestingT, h http.Header, name string) []limitItem {
	lines := h.Values(name)
	require.Len(t, lines, 1, name)
	list, err := httpsfv.UnmarshalList(lines)
	require.NoError(t, err, lines[0])
	var out []limitItem
	for _, m := range list {
		item, ok := m.(httpsfv.Item)
		require.True(t, ok, "%s has an inner list: %s", name, lines[0])
		s, ok := item.Value.(string) // a token would be an httpsfv.Token
		require.True(t, ok, "%s: %T is no string: %s", name, item.Value, lines[0])
		parsed := limitItem{name: s, params: map[string]any{}}
		for _, key := range item.Params.Names() {
			v, _ := item.Params.Get(key)
			switch v := v.(type) {
			case int64:
				require.GreaterOrEqual(t, v, int64(0), lines[0])
				require.LessOrEqual(t, v, int64(999_999_999_999_999), lines[0])
			case string:
			default:
				require.Failf(t, "type", "%s: %T: %s", key, v, lines[0])
			}
			parsed.params[key] = v
		}
		out = append(out, parsed)
	}
	return out
}

func TestRateLimitHeaders(t *testing.T) {
	t.Parallel()
	newYork, err := time.LoadLocation("America/New_York")
	require.NoError(t, err)
	berlin, err := time.LoadLocation("Europe/Berlin")
	require.NoError(t, err)
	daily := &bucket.Limit{Name: "daily", Kind: bucket.Quota, Size: 10000, Every: bucket.Calendar{Every: bucket.Day, Location: newYork}}
	monthly := &bucket.Limit{Name: "monthly", Kind: bucket.Quota, Size: 10, Every: bucket.Calendar{Every: bucket.Month}}
	inFlight := &bucket.Limit{Name: "in-flight", Kind: bucket.Concurrency, Size: 8, Hold: time.Minute}
	sliding := &bucket.Limit{Name: "slide", Kind: bucket.SlidingWindow, Unit: "llm_tokens", Size: 100, Window: 90500 * time.Millisecond}
	shadow := &bucket.Limit{Name: "trial", Kind: bucket.TokenBucket, Size: 1, Refill: bucket.Rate{N: 1, P: 1_000_000}, Shadow: true}
	autumn := &bucket.Limit{Name: "long-day", Kind: bucket.Quota, Size: 5, Every: bucket.Calendar{Every: bucket.Day, Location: berlin}}
	state := func(l *bucket.Limit, left int64, reset, wait time.Duration) admission.LimitState {
		return admission.LimitState{Limit: l, Remaining: left, Reset: reset, Wait: wait, Pressed: true}
	}
	toMidnight := 17*time.Hour + 59*time.Minute + 59*time.Second + 750*time.Millisecond // of New York, from now
	autumnDay := admitted(state(autumn, 4, 13*time.Hour, 0))
	autumnDay.Now = time.Date(2026, 10, 25, 10, 0, 0, 0, time.UTC) // 25 hours long in Berlin, ends at 23:00 UTC
	never := refused(admission.ReasonLimit, 30*time.Second, state(inFlight, 0, 0, bucket.Forever))
	never.Forever = true
	for _, c := range []struct {
		name          string
		d             admission.Decision
		policy, limit string // "" means that there is none
		retry         string
		x             [3]string // limit, remaining, reset
	}{
		{
			name:   "bucket, admitted",
			d:      admitted(state(rate(40, 1, 500_000), 39, 500*time.Millisecond, 0)),
			policy: `"rate";q=40;w=20`, limit: `"rate";r=39;t=20`, x: [3]string{"40", "39", "1"},
		},
		{
			name:   "bucket, the last token",
			d:      admitted(state(rate(1, 1, 60_000_000), 0, time.Minute, 0)),
			policy: `"rate";q=1;w=60`, limit: `"rate";r=0;t=1`, x: [3]string{"1", "0", "60"},
		},
		{
			name:   "fast bucket: at least a second",
			d:      admitted(state(rate(5, 1, 1000), 4, time.Millisecond, 0)),
			policy: `"rate";q=5;w=1`, limit: `"rate";r=4;t=1`, x: [3]string{"5", "4", "1"},
		},
		{
			name:   "bucket, refused with tokens left",
			d:      refused(admission.ReasonLimit, 1480*time.Millisecond, state(rate(40, 1, 500_000), 2, 19*time.Second, 1480*time.Millisecond)),
			policy: `"rate";q=40;w=20`, limit: `"rate";r=0;t=2`, retry: "2", x: [3]string{"40", "0", "19"},
		},
		{
			name:   "quota: the window's real length, to its end",
			d:      admitted(state(daily, 8211, toMidnight, 0)),
			policy: `"daily";q=10000;w=86400`, limit: `"daily";r=8211;t=64800`, x: [3]string{"10000", "8211", "64800"},
		},
		{
			name:   "quota of a month",
			d:      admitted(state(monthly, 9, 30*24*time.Hour+12*time.Hour+59*time.Minute+59*time.Second+750*time.Millisecond, 0)),
			policy: `"monthly";q=10;w=2678400`, limit: `"monthly";r=9;t=2638800`, x: [3]string{"10", "9", "2638800"},
		},
		{
			name: "quota of a day of 25 hours", d: autumnDay,
			policy: `"long-day";q=5;w=90000`, limit: `"long-day";r=4;t=46800`, x: [3]string{"5", "4", "46800"},
		},
		{
			name:   "quota, refused with some left",
			d:      refused(admission.ReasonQuota, toMidnight+3*time.Second, state(daily, 3, toMidnight, toMidnight)),
			policy: `"daily";q=10000;w=86400`, limit: `"daily";r=3;t=64800`, retry: "64803", x: [3]string{"10000", "3", "64800"},
		},
		{
			name:   "concurrency",
			d:      admitted(state(inFlight, 3, 0, 0)),
			policy: `"in-flight";q=8;qu="concurrent-requests"`, limit: `"in-flight";r=3`, x: [3]string{"8", "3", "0"},
		},
		{
			name: "concurrency, nobody knows until when", d: never,
			policy: `"in-flight";q=8;qu="concurrent-requests"`, limit: `"in-flight";r=0`, retry: "30", x: [3]string{"8", "0", "0"},
		},
		{
			name:   "concurrency, refused until a grant ends",
			d:      refused(admission.ReasonLimit, 3*time.Second, state(inFlight, 0, 0, 3*time.Second)),
			policy: `"in-flight";q=8;qu="concurrent-requests"`, limit: `"in-flight";r=0`, retry: "3", x: [3]string{"8", "0", "3"},
		},
		{
			name:   "sliding, of another unit",
			d:      admitted(state(sliding, 50, 80*time.Second, 0)),
			policy: `"slide";q=100;w=91;sluice-unit="llm_tokens"`, limit: `"slide";r=50;t=46`, x: [3]string{"100", "50", "80"},
		},
		{
			name:   "the closest to exhaustion first, whatever the policy's order",
			d:      admitted(state(daily, 8211, toMidnight, 0), state(inFlight, 8, 0, 0), state(rate(40, 1, 500_000), 2, 19*time.Second, 0)),
			policy: `"rate";q=40;w=20, "daily";q=10000;w=86400, "in-flight";q=8;qu="concurrent-requests"`,
			limit:  `"rate";r=2;t=1, "daily";r=8211;t=64800, "in-flight";r=8`, x: [3]string{"40", "2", "19"},
		},
		{
			name: "what refuses longest first, then what is scarce",
			d: refused(admission.ReasonLimit, 2*time.Second,
				state(inFlight, 0, 0, time.Second), state(daily, 0, toMidnight, 0), state(rate(40, 1, 500_000), 2, 19*time.Second, 2*time.Second)),
			policy: `"rate";q=40;w=20, "in-flight";q=8;qu="concurrent-requests", "daily";q=10000;w=86400`,
			limit:  `"rate";r=0;t=2, "in-flight";r=0, "daily";r=0;t=64800`, retry: "2", x: [3]string{"40", "0", "19"},
		},
		{
			name: "shadow limits and limits that did not count the ask are left out",
			d: admitted(state(shadow, 0, time.Second, time.Second), admission.LimitState{Limit: sliding, Remaining: 100},
				state(rate(40, 1, 500_000), 39, 500*time.Millisecond, 0)),
			policy: `"rate";q=40;w=20`, limit: `"rate";r=39;t=20`, x: [3]string{"40", "39", "1"},
		},
		{name: "no limits known", d: admitted()},
		{
			name:   "Retry-After is never before t",
			d:      refused(admission.ReasonLimit, time.Millisecond, state(rate(40, 1, 500_000), 0, 20*time.Second, 3001*time.Millisecond)),
			policy: `"rate";q=40;w=20`, limit: `"rate";r=0;t=4`, retry: "4", x: [3]string{"40", "0", "20"},
		},
		{
			name:   "numbers that a structured field cannot hold are cut",
			d:      admitted(state(rate(1<<52, 1, 1), 1<<52, 0, 0)),
			policy: `"rate";q=999999999999999;w=4503599628`, limit: `"rate";r=999999999999999;t=1000000000`,
			x: [3]string{strconv.Itoa(1 << 52), "999999999999999", "0"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			a := newAPI(t, 0)
			a.fake.admit = func(context.Context, admission.Ask) (admission.Decision, error) { return c.d, nil }
			for range 2 { // windows are remembered
				got := a.post(admissions, `{}`)
				require.Equal(t, c.policy, got.header.Get("RateLimit-Policy"))
				require.Equal(t, c.limit, got.header.Get("RateLimit"))
				require.Equal(t, c.retry, got.header.Get("Retry-After"))
				x := [3]string{
					got.header.Get("X-RateLimit-Limit"), got.header.Get("X-RateLimit-Remaining"), got.header.Get("X-RateLimit-Reset"),
				}
				require.Equal(t, c.x, x)
				require.Equal(t, "no-store", got.header.Get("Cache-Control"))
				if c.policy != "" {
					fields(t, got.header, "RateLimit-Policy")
					fields(t, got.header, "RateLimit")
				}
			}
		})
	}
}

// The length of a window is remembered per limit and window, not per name.
func TestRateLimitHeaders_windowsChange(t *testing.T) {
	t.Parallel()
	a := newAPI(t, 0)
	ask := func(every bucket.Period, at time.Time) string {
		l := &bucket.Limit{Name: "cap", Kind: bucket.Quota, Size: 10, Every: bucket.Calendar{Every: every}}
		d := admitted(admission.LimitState{Limit: l, Remaining: 9, Pressed: true})
		d.Now = at
		_, end, _ := l.Every.Windows(at)
		d.Limits[0].Reset = end.Sub(at)
		a.fake.admit = func(context.Context, admission.Ask) (admission.Decision, error) { return d, nil }
		return a.post(admissions, `{}`).header.Get("RateLimit-Policy")
	}
	require.Equal(t, `"cap";q=10;w=2678400`, ask(bucket.Month, now))
	require.Equal(t, `"cap";q=10;w=86400`, ask(bucket.Day, now), "the policy changed")

	l := &bucket.Limit{Name: "cap", Kind: bucket.Quota, Size: 10, Every: bucket.Calendar{Every: bucket.Month}}
	for _, c := range []struct {
		month time.Month
		days  int
	}{{time.January, 31}, {time.February, 28}, {time.January, 31}} {
		d := admitted(admission.LimitState{Limit: l, Remaining: 9, Pressed: true})
		d.Now = time.Date(2027, c.month, 10, 0, 0, 0, 0, time.UTC)
		d.Limits[0].Reset = time.Date(2027, c.month+1, 1, 0, 0, 0, 0, time.UTC).Sub(d.Now)
		a.fake.admit = func(context.Context, admission.Ask) (admission.Decision, error) { return d, nil }
		require.Equal(t, `"cap";q=10;w=`+strconv.Itoa(c.days*86400), a.post(admissions, `{}`).header.Get("RateLimit-Policy"))
	}
}

// TestRateLimitHeaders_generated checks what FORMATS 1 demands of all values, whatever the limits.
func TestRateLimitHeaders_generated(t *testing.T) {
	t.Parallel()
	a := newAPI(t, 0)
	rapid.Check(t, func(t *rapid.T) {
		d := admitted()
		if rapid.Bool().Draw(t, "refused") {
			d = refused(admission.ReasonLimit, time.Duration(rapid.Int64Range(1, 100_000).Draw(t, "retry"))*time.Millisecond)
		}
		kinds := []bucket.Kind{bucket.TokenBucket, bucket.Concurrency, bucket.Quota, bucket.SlidingWindow, bucket.SlidingLog}
		pressed := map[string]bool{}
		for i := range rapid.IntRange(1, 20).Draw(t, "limits") {
			l := &bucket.Limit{
				Name: "l" + strconv.Itoa(i), Kind: rapid.SampledFrom(kinds).Draw(t, "kind"), Size: rapid.Int64Range(1, 1000).Draw(t, "size"),
				Refill: bucket.Rate{N: rapid.Int64Range(1, 1<<40).Draw(t, "n"), P: rapid.Int64Range(1, 1<<44).Draw(t, "p")},
				Window: time.Duration(rapid.Int64Range(1, 1<<40).Draw(t, "window")) * time.Millisecond,
				Every:  bucket.Calendar{Every: bucket.Hour}, Shadow: rapid.Bool().Draw(t, "shadow"),
			}
			s := admission.LimitState{
				Limit: l, Remaining: rapid.Int64Range(0, l.Size).Draw(t, "left"), Pressed: rapid.Bool().Draw(t, "pressed"),
				Reset: time.Duration(rapid.Int64Range(0, 1<<42).Draw(t, "reset")) * time.Microsecond,
			}
			if d.Outcome == admission.OutcomeRejected {
				s.Wait = time.Duration(rapid.Int64Range(0, 1<<42).Draw(t, "wait")) * time.Microsecond
			}
			if s.Pressed && !l.Shadow {
				pressed[l.Name] = true
			}
			d.Limits = append(d.Limits, s)
		}
		a.fake.mu.Lock()
		a.fake.admit = func(context.Context, admission.Ask) (admission.Decision, error) { return d, nil }
		a.fake.mu.Unlock()
		got := a.post(admissions, `{}`)
		if len(pressed) == 0 {
			require.Empty(t, got.header.Get("RateLimit"))
			return
		}
		policies, limits := fields(t, got.header, "RateLimit-Policy"), fields(t, got.header, "RateLimit")
		require.Len(t, policies, len(pressed))
		require.Len(t, limits, len(pressed))
		retry, _ := strconv.ParseInt(got.header.Get("Retry-After"), 10, 64)
		for i, l := range limits {
			require.Equal(t, policies[i].name, l.name)
			require.True(t, pressed[l.name])
			require.Contains(t, l.params, "r")
			at, ok := l.params["t"].(int64)
			if ok {
				require.GreaterOrEqual(t, at, int64(1))
			}
			for _, s := range d.Limits {
				if s.Limit.Name != l.name {
					continue
				}
				require.Equal(t, s.Limit.Kind != bucket.Concurrency, ok)
				require.Equal(t, s.Limit.Size, policies[i].params["q"])
				if s.Wait > 0 && ok {
					require.GreaterOrEqual(t, retry, at)
				}
				if s.Wait > 0 && ok && s.Limit.Kind != bucket.Quota { // whose t is its window's end
					require.GreaterOrEqual(t, time.Duration(at)*time.Second, s.Wait.Truncate(time.Second))
				}
			}
		}
	})
}
