package bucket

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// inBubble runs f where time stands still unless all wait.
func inBubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, f)
}

// patient is a Health in a bubble and the changes it told of.
type patient struct {
	*Health
	changes []bool
}

func newPatient() *patient {
	p := &patient{}
	p.Health = NewHealth(time.Now, func(degraded bool) { p.changes = append(p.changes, degraded) })
	return p
}

// report tells o for success and x for an overrun.
func (p *patient) report(outcomes string) {
	for _, o := range outcomes {
		if o == 'o' {
			p.Report(nil)
		} else {
			p.Report(ErrTimeout)
		}
	}
}

func TestHealthDegrades(t *testing.T) {
	t.Parallel()
	type step struct {
		after    time.Duration
		outcomes string
	}
	const ms = time.Millisecond
	for name, test := range map[string]struct {
		steps    []step
		degraded bool
	}{
		"nothing reported":                   {nil, false},
		"four in a row":                      {[]step{{0, "xxxx"}}, false},
		"five in a row":                      {[]step{{0, "xxxxx"}}, true},
		"five in a row, hours apart":         {[]step{{0, "x"}, {time.Hour, "x"}, {time.Hour, "x"}, {time.Hour, "x"}, {time.Hour, "x"}}, true},
		"five in a row after many successes": {[]step{{0, "oooooooooooooooooooooooooo"}, {0, "xxxxx"}}, true},
		"a success breaks the row":           {[]step{{0, "xxxx"}, {2 * time.Second, "o"}, {0, "xxxx"}}, false},
		"half of ten within a second":        {[]step{{0, "xo"}, {200 * ms, "xo"}, {200 * ms, "xo"}, {200 * ms, "xo"}, {200 * ms, "ox"}}, true},
		"less than half":                     {[]step{{0, "xo"}, {200 * ms, "xo"}, {200 * ms, "xo"}, {200 * ms, "xo"}, {199 * ms, "oox"}}, false},
		"half, but over more than a second":  {[]step{{0, "xo"}, {250 * ms, "xo"}, {250 * ms, "xo"}, {250 * ms, "xo"}, {250 * ms, "ox"}}, false},
		"half, but only eight":               {[]step{{0, "xoxoxoxo"}}, false},
		"the second begins with the trouble": {[]step{{0, "oooooooooooooooooooooooooo"}, {900 * ms, "xoxoxoxox"}}, true},
		"and begins anew":                    {[]step{{0, "xooooooooooooooooo"}, {time.Second, "xoxoxoxox"}}, true},
		"a slow trickle of overruns":         {[]step{{0, "xooo"}, {ms, "xooo"}, {ms, "xooo"}, {ms, "xooo"}, {ms, "xooo"}, {ms, "xooo"}, {ms, "xooo"}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				p := newPatient()
				for _, s := range test.steps {
					time.Sleep(s.after)
					require.Empty(t, p.changes, "too early")
					p.report(s.outcomes)
				}
				require.Equal(t, test.degraded, p.Degraded())
				if test.degraded {
					p.report("xxxxxxxx")
					require.Equal(t, []bool{true}, p.changes, "one call per change")
				}
			})
		})
	}
}

func TestHealthRecovers(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		p := newPatient()
		p.Recover()
		require.Empty(t, p.changes, "there was no trouble")
		p.report("xxxxx")
		p.report("oooooooooo") // asked before the change
		require.True(t, p.Degraded())
		p.Recover()
		require.False(t, p.Degraded())
		require.Equal(t, []bool{true, false}, p.changes)

		time.Sleep(time.Second) // it starts afresh
		p.report("xxxx")
		require.False(t, p.Degraded())
		for _, answered := range []error{nil, ErrBroken, ErrFull} {
			time.Sleep(time.Second)
			p.Report(answered)
			p.report("xxxx")
			require.False(t, p.Degraded(), "%v breaks the row", answered)
		}
	})
}

// TestHealthRelapse: what is in trouble again right after it recovered is left alone for a second and a half, so that a store
// which answers those who try it and nobody else is not asked all the time.
func TestHealthRelapse(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		p := newPatient()
		asked := 0
		for i := range 30_000 {
			if !p.Degraded() {
				asked++
				p.Report(fmt.Errorf("script: %w: NOPERM", ErrUnavailable))
			}
			if i%500 == 499 {
				p.Recover()
			}
			time.Sleep(time.Millisecond)
		}
		require.LessOrEqual(t, asked, 5*(1+30_000/1500))
		require.Greater(t, asked, 5*10)
		p.Recover()
		time.Sleep(1500 * time.Millisecond)
		p.Recover()
		require.False(t, p.Degraded())
		time.Sleep(time.Second)
		p.report("xxxxx")
		p.Recover()
		require.False(t, p.Degraded(), "what comes later is new trouble")
	})
}

func TestHealthIgnoresWhatSaysNothingOfTheStore(t *testing.T) {
	t.Parallel()
	for _, err := range []error{context.Canceled, ErrOverloaded, ErrClosed, errors.New("other")} {
		h := NewHealth(time.Now, nil)
		for range 4 {
			h.Report(ErrUnavailable)
		}
		for range 10 {
			h.Report(err)
		}
		require.False(t, h.Degraded(), err)
		h.Report(ErrUnavailable)
		require.True(t, h.Degraded(), err)
	}
}

func TestHealthFromManyGoroutines(t *testing.T) {
	t.Parallel()
	var degraded atomic.Bool
	var changes atomic.Int64
	var clock atomic.Int64
	h := NewHealth(func() time.Time { return time.UnixMilli(clock.Load()) }, func(d bool) {
		changes.Add(1)
		if degraded.Swap(d) == d {
			t.Error("told the same change twice")
		}
	})
	for round := range 200 {
		failing := round%2 == 0
		var wg sync.WaitGroup
		clock.Add(2000)
		for range 8 {
			wg.Go(func() {
				for range 50 {
					if failing {
						h.Report(ErrUnavailable)
					} else {
						h.Recover()
						h.Report(nil)
					}
				}
			})
		}
		wg.Wait()
		require.Equal(t, failing, h.Degraded())
		require.Equal(t, failing, degraded.Load())
	}
	require.Equal(t, int64(200), changes.Load())
}

func BenchmarkHealth(b *testing.B) {
	h := NewHealth(time.Now, nil)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if !h.Degraded() {
				h.Report(nil)
			}
		}
	})
}
