package partner_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/sluicehq/sluice/internal/partner"
)

// clock is moved by hand.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *clock { return &clock{now: time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)} }

func (c *clock) read() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) move(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func TestStrictToTheNanosecond(t *testing.T) {
	t.Parallel()
	c := newClock()
	p, err := partner.New(partner.Config{Capacity: 2, Refill: 3, Per: time.Second, Now: c.read})
	require.NoError(t, err)

	for _, step := range []struct {
		after time.Duration
		ok    bool
		retry time.Duration
	}{
		{0, true, 0},
		{0, true, 0},
		{0, false, 333_333_334},          // a third of a second, rounded up
		{333_333_333, false, 1},          // still one nanosecond early
		{1, true, 0},                     // 333333334 ns: 1.000000002 tokens came back
		{0, false, 333_333_333},          // the two nanoseconds too many count for the next one
		{time.Hour, true, 0},             // full again, and no fuller
		{0, true, 0},                     //
		{0, false, 333_333_334},          //
		{-time.Hour, false, 333_333_334}, // a clock that steps back gives nothing
	} {
		c.move(step.after)
		ok, retry := p.Call()
		require.Equal(t, step.ok, ok, "%+v", step)
		require.Equal(t, step.retry, retry, "%+v", step)
	}
	s := p.Stats()
	require.EqualValues(t, 10, s.Calls)
	require.EqualValues(t, 5, s.Violations)
	require.Len(t, s.Arrivals, 10)
}

// TestNeverMoreThanCapacityAndRefill counts what is allowed in every interval, whatever the limit and the calls.
func TestNeverMoreThanCapacityAndRefill(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		c := newClock()
		capacity := rapid.Int64Range(1, 20).Draw(t, "capacity")
		refill := rapid.Int64Range(1, 50).Draw(t, "refill")
		per := time.Duration(rapid.Int64Range(1, int64(2*time.Second)).Draw(t, "per"))
		p, err := partner.New(partner.Config{Capacity: capacity, Refill: refill, Per: per, Now: c.read})
		require.NoError(t, err)
		var allowed []time.Time
		for range rapid.IntRange(1, 60).Draw(t, "calls") {
			c.move(time.Duration(rapid.Int64Range(0, int64(per)).Draw(t, "step")))
			ok, retry := p.Call()
			if ok {
				allowed = append(allowed, c.read())
				for i := range allowed {
					took := int64(c.read().Sub(allowed[i]))
					require.LessOrEqual(t, int64(len(allowed)-i)*int64(per), capacity*int64(per)+refill*took)
				}
				continue
			}
			// What it says is exact: not a nanosecond earlier, and then for sure.
			c.move(retry - 1)
			early, _ := p.Call()
			require.False(t, early)
			c.move(1)
			then, _ := p.Call()
			require.True(t, then)
			allowed = append(allowed, c.read())
		}
	})
}

func TestAnswers(t *testing.T) {
	t.Parallel()
	c := newClock()
	p, err := partner.New(partner.Config{Capacity: 1, Refill: 2, Per: 3 * time.Second, Kept: 2, Now: c.read})
	require.NoError(t, err)
	call := func(method, path string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		p.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), method, path, nil))
		return w
	}
	require.Equal(t, http.StatusOK, call(http.MethodPost, "/orders").Code)
	c.move(100 * time.Millisecond)
	refused := call(http.MethodGet, "/anything")
	require.Equal(t, http.StatusTooManyRequests, refused.Code)
	require.Equal(t, "2", refused.Header().Get("Retry-After"), "1.4 s, rounded up")
	c.move(1400 * time.Millisecond)
	require.Equal(t, http.StatusOK, call(http.MethodGet, "/").Code)

	stats := call(http.MethodGet, "/stats")
	require.Equal(t, http.StatusOK, stats.Code)
	var got map[string]any
	require.NoError(t, json.Unmarshal(stats.Body.Bytes(), &got))
	require.Equal(t, map[string]any{
		"limit": "1 at once, 2 per 3s", "calls": 3.0, "violations": 1.0,
		"arrivals_ms": []any{0.0, 1400.0}, // the latest two
	}, got)
	require.Equal(t, http.StatusMethodNotAllowed, call(http.MethodPost, "/stats").Code)
}

func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	c := newClock()
	p, err := partner.New(partner.Config{Capacity: 10, Refill: 1, Per: time.Second, Now: c.read})
	require.NoError(t, err)
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() { p.Call() })
	}
	wg.Wait()
	s := p.Stats()
	require.EqualValues(t, 100, s.Calls)
	require.EqualValues(t, 90, s.Violations)
}

func TestBounds(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]partner.Config{
		"no capacity": {Refill: 1, Per: time.Second},
		"no refill":   {Capacity: 1, Per: time.Second},
		"no per":      {Capacity: 1, Refill: 1},
		"too large":   {Capacity: 1 << 40, Refill: 1, Per: time.Hour},
		"kept":        {Capacity: 1, Refill: 1, Per: 1, Kept: -1},
	} {
		_, err := partner.New(c)
		require.Error(t, err, name)
	}
}
