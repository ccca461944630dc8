package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// askFunc asks once and reports whether it was admitted. n counts the asks of one caller.
type askFunc func(ctx context.Context, caller, n int) (bool, error)

// run is one measured span of one contender.
type run struct {
	took     time.Duration
	asked    int
	admitted int
	waits    []time.Duration // sampled, sorted
	use      usage
}

func (r run) rate() float64 { return float64(r.asked) / r.took.Seconds() }

func (r run) quantile(q float64) time.Duration {
	if len(r.waits) == 0 {
		return 0
	}
	return r.waits[min(len(r.waits)-1, int(q*float64(len(r.waits))))]
}

// Bounds of a span.
const (
	maxAsks = 8_000_000
	// sampled: with many callers every so manieth ask is timed, because reading the clock costs as much as some asks do.
	sampled = 32
)

// drive lets the callers ask, each again as soon as it has its answer, for that long.
func drive(ctx context.Context, callers int, span time.Duration, ask askFunc) (run, error) {
	ctx, cancel := context.WithTimeout(ctx, span+30*time.Second)
	defer cancel()
	every := sampled
	if callers == 1 {
		every = 1
	}
	type tally struct {
		asked, admitted int
		waits           []time.Duration
		err             error
		_               [64]byte // tallies of two callers share no cache line
	}
	var (
		wg      sync.WaitGroup
		stop    atomic.Bool
		tallies = make([]tally, callers)
		most    = maxAsks / callers
	)
	begin := time.Now()
	for c := range callers {
		wg.Go(func() {
			t := &tallies[c]
			ctx, cancel := context.WithCancel(ctx) // as requests have, each its own
			defer cancel()
			for n := 0; n < most && !stop.Load(); n++ {
				timed := (n+c)%every == 0
				var at time.Time
				if timed {
					at = time.Now()
				}
				ok, err := ask(ctx, c, n)
				if err != nil {
					t.err = err
					stop.Store(true)
					return
				}
				if timed {
					t.waits = append(t.waits, time.Since(at))
				}
				t.asked++
				if ok {
					t.admitted++
				}
			}
		})
	}
	timer := time.AfterFunc(span, func() { stop.Store(true) })
	wg.Wait()
	timer.Stop()
	r := run{took: time.Since(begin)}
	for i := range tallies {
		t := &tallies[i]
		if t.err != nil {
			return r, fmt.Errorf("caller %d: %w", i, t.err)
		}
		r.asked += t.asked
		r.admitted += t.admitted
		r.waits = append(r.waits, t.waits...)
	}
	slices.Sort(r.waits)
	return r, nil
}

// median of what f reads of each.
func median[T any, N int | float64 | time.Duration](of []T, f func(T) N) N {
	vals := make([]N, len(of))
	for i, x := range of {
		vals[i] = f(x)
	}
	slices.Sort(vals)
	if len(vals) == 0 {
		return 0
	}
	mid := len(vals) / 2
	if len(vals)%2 == 0 {
		return (vals[mid-1] + vals[mid]) / 2
	}
	return vals[mid]
}
