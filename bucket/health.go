package bucket

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// When the store counts as in trouble.
const (
	overrunsInARow = 5
	overrunWindow  = time.Second
	// One that is in trouble again so soon after it recovered was not mended by what found it so, and is left alone longer.
	relapseWithin = time.Second
	relapseHold   = 1500 * time.Millisecond
)

// Health decides whether the store is worth asking, for those who give it the same time to answer.
//
// It is healthy at first and degraded after five overruns in a row, or when within one second at least five asks and at
// least half of all overran. The second begins with an overrun and, once it has passed, anew with the next one: so it
// starts with the trouble, whatever went well before does not dilute it, and an ask that goes well reads no clock.
//
// While degraded nobody asks. Whoever finds out that the store answers in time, by a try of its own, calls Recover: so a
// store in trouble is tried as often as that one tries, however many callers there are. Where it recovers and is degraded
// again within a second, it stays so for a second and a half at least.
//
// All methods may be called from many goroutines; a healthy ask costs two atomic loads and one atomic addition.
type Health struct {
	now      func() time.Time
	start    time.Time
	onChange func(degraded bool)

	degraded  atomic.Bool
	successes atomic.Int64 // ever
	row       atomic.Int32 // overruns since the last success

	mu        sync.Mutex    // held for overruns and changes only
	since     time.Duration // when the window began, since start, as all times
	before    int64         // successes when it began
	overruns  int64         // in the window; 0: there is no window
	recovered time.Duration // when it last did, 0: never
	hold      time.Duration // until when it does not recover
}

// NewHealth returns a Health on the given clock, whose steps must be monotonic as those of time.Now are. onChange, which
// may be nil, is called once per change, in the order of the changes; it must not block nor call the Health.
func NewHealth(now func() time.Time, onChange func(degraded bool)) *Health {
	return &Health{now: now, start: now(), onChange: onChange}
}

// Degraded reports whether not to ask the store.
func (h *Health) Degraded() bool { return h.degraded.Load() }

// Report tells what came of one ask. Nil, ErrBroken and ErrFull are a success, since the store answered; ErrUnavailable,
// and so ErrTimeout, is an overrun. Every other error, such as a caller that left, says nothing about the store, and
// neither does what was asked before the store was found to be in trouble and comes in only now.
func (h *Health) Report(err error) {
	switch {
	case h.degraded.Load():
	case err == nil || errors.Is(err, ErrBroken) || errors.Is(err, ErrFull):
		h.successes.Add(1)
		if h.row.Load() != 0 {
			h.row.Store(0)
		}
	case errors.Is(err, ErrUnavailable):
		h.overrun()
	}
}

// Recover ends the trouble.
func (h *Health) Recover() {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.elapsed()
	if h.degraded.Load() && now >= h.hold {
		h.recovered = now
		h.change(false)
	}
}

func (h *Health) overrun() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.degraded.Load() {
		return
	}
	row := h.row.Add(1)
	now := h.elapsed()
	if h.overruns == 0 || now-h.since >= overrunWindow {
		h.since, h.before, h.overruns = now, h.successes.Load(), 0
	}
	h.overruns++
	successes := h.successes.Load() - h.before
	if row < overrunsInARow && (h.overruns < overrunsInARow || h.overruns < successes) {
		return
	}
	h.hold = now
	if h.recovered > 0 && now-h.recovered < relapseWithin {
		h.hold += relapseHold
	}
	h.change(true)
}

// change needs the mutex: it keeps the calls of onChange in order.
func (h *Health) change(degraded bool) {
	h.row.Store(0)
	h.overruns = 0
	h.degraded.Store(degraded)
	if h.onChange != nil {
		h.onChange(degraded)
	}
}

func (h *Health) elapsed() time.Duration { return h.now().Sub(h.start) }
