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
	pass    Pass // the last that was given
}

func (p *patient) Allow() bool {
	pass, ok := p.Health.Allow()
	if ok {
		p.pass = pass
	}
	return ok
}

// told reports what came of an ask from before any trouble.
func (p *patient) told(err error) { p.Report(Pass{}, err) }

// probed reports what came of the ask that was allowed last.
func (p *patient) probed(err error) { p.Report(p.pass, err) }

func newPatient() *patient {
	p := &patient{}
	p.Health = NewHealth(NewProbes(time.Now), func(degraded bool) { p.changes = append(p.changes, degraded) })
	return p
}

// report tells o for success and x for an overrun.
func (p *patient) report(outcomes string) {
	for _, o := range outcomes {
		if o == 'o' {
			p.told(nil)
		} else {
			p.told(ErrTimeout)
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
					require.True(t, p.Allow())
					p.report(s.outcomes)
				}
				require.Equal(t, test.degraded, p.Degraded())
				require.Equal(t, test.degraded, !p.Allow())
				if test.degraded {
					p.report("xxxxxxxx")
					require.Equal(t, []bool{true}, p.changes, "one call per change")
				}
			})
		})
	}
}

func TestHealthProbes(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		p := newPatient()
		p.report("xxxxx")
		time.Sleep(499 * time.Millisecond)
		require.False(t, p.Allow())

		time.Sleep(time.Millisecond)
		require.True(t, p.Allow(), "a probe")
		require.False(t, p.Allow(), "only one")
		p.report("oooo") // asked before the change, answered while the probe is out
		require.True(t, p.Degraded())
		p.probed(ErrTimeout)
		late := p.pass

		time.Sleep(499 * time.Millisecond)
		require.False(t, p.Allow())
		time.Sleep(time.Millisecond)
		require.True(t, p.Allow(), "the next probe, which says nothing of the store")
		p.probed(context.Canceled)
		require.False(t, p.Allow())

		time.Sleep(700 * time.Millisecond)
		require.True(t, p.Allow())
		require.Equal(t, []bool{true}, p.changes)
		p.probed(nil)
		require.False(t, p.Degraded())
		require.Equal(t, []bool{true, false}, p.changes)

		// It starts afresh.
		p.report("xxxx")
		require.True(t, p.Allow())
		p.report("x")
		require.False(t, p.Allow())
		require.Equal(t, []bool{true, false, true}, p.changes)
		p.Report(late, nil)
		require.True(t, p.Degraded(), "a probe of former trouble")
		for _, answered := range []error{ErrBroken, ErrFull} {
			time.Sleep(500 * time.Millisecond)
			require.True(t, p.Allow())
			p.probed(answered)
			require.False(t, p.Degraded())
			p.report("xxxx") // five more were within this second, but before the probe
			require.False(t, p.Degraded())
			p.report("x")
		}
	})
}

// TestHealthsShareProbes: however many policies are in trouble, the store is tried twice a second; whoever has no asks is
// told by those that have, and the process looks by itself where there are none.
func TestHealthsShareProbes(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		probes := NewProbes(time.Now)
		one, two := NewHealth(probes, nil), NewHealth(probes, nil)
		for range 5 {
			one.Report(Pass{}, ErrTimeout)
			two.Report(Pass{}, ErrTimeout)
		}
		tries := 0
		for range 20_000 {
			for _, h := range []*Health{one, two} {
				if pass, ok := h.Allow(); ok {
					tries++
					h.Report(pass, ErrTimeout)
				}
			}
			if probes.Idle() {
				t.Error("somebody asks")
			}
			time.Sleep(time.Millisecond)
		}
		require.Equal(t, 39, tries)
		two.Recover()
		require.True(t, one.Degraded())
		require.False(t, two.Degraded())
		time.Sleep(time.Second)
		require.True(t, probes.Idle())
		require.False(t, probes.Idle())
	})
}

// While the store refuses, at most ten tries a second reach it; when it is back, it is used within two seconds.
func TestHealthBoundsTries(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		p := newPatient()
		start, failed := time.Now(), 30*time.Second
		var tries []time.Duration
		var back time.Duration
		for time.Since(start) < failed+3*time.Second {
			for range 100 { // 100,000 asks a second
				if !p.Allow() {
					continue
				}
				if at := time.Since(start); at >= failed {
					p.probed(nil)
					if back == 0 {
						back = at - failed
					}
				} else {
					tries = append(tries, at)
					p.probed(fmt.Errorf("script: %w: READONLY", ErrNotRun))
				}
			}
			time.Sleep(time.Millisecond)
		}
		for i, at := range tries[:len(tries)-10] {
			require.GreaterOrEqual(t, tries[i+10]-at, time.Second)
		}
		require.Len(t, tries, 5+2*30-1)
		require.LessOrEqual(t, back, 2*time.Second)
		require.Equal(t, []bool{true, false}, p.changes)
	})
}

func TestHealthIgnoresWhatSaysNothingOfTheStore(t *testing.T) {
	t.Parallel()
	for _, err := range []error{context.Canceled, ErrOverloaded, ErrClosed, errors.New("other")} {
		h := NewHealth(NewProbes(time.Now), nil)
		for range 4 {
			h.Report(Pass{}, ErrUnavailable)
		}
		for range 10 {
			h.Report(Pass{}, err)
		}
		require.False(t, h.Degraded(), err)
		h.Report(Pass{}, ErrUnavailable)
		require.True(t, h.Degraded(), err)
	}
}

func TestHealthFromManyGoroutines(t *testing.T) {
	t.Parallel()
	var degraded atomic.Bool
	var changes atomic.Int64
	var clock atomic.Int64
	h := NewHealth(NewProbes(func() time.Time { return time.UnixMilli(clock.Load()) }), func(d bool) {
		changes.Add(1)
		if degraded.Swap(d) == d {
			t.Error("told the same change twice")
		}
	})
	var allowed atomic.Int64
	for round := range 200 {
		failing := round%2 == 0
		var wg sync.WaitGroup
		clock.Add(500)
		allowed.Store(0)
		before := h.Degraded()
		for range 8 {
			wg.Go(func() {
				for range 50 {
					if pass, ok := h.Allow(); ok {
						allowed.Add(1)
						if failing {
							h.Report(pass, ErrUnavailable)
						} else {
							h.Report(pass, nil)
						}
					}
				}
			})
		}
		wg.Wait()
		require.Equal(t, failing, h.Degraded())
		require.Equal(t, h.Degraded(), degraded.Load())
		if before && failing {
			require.Equal(t, int64(1), allowed.Load())
		}
	}
	require.Equal(t, int64(200), changes.Load())
}

func BenchmarkHealth(b *testing.B) {
	h := NewHealth(NewProbes(time.Now), nil)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if pass, ok := h.Allow(); ok {
				h.Report(pass, nil)
			}
		}
	})
}
