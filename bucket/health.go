package bucket

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// When the store counts as in trouble and how it is tried again.
const (
	overrunsInARow = 5
	overrunWindow  = time.Second
	probeEvery     = 500 * time.Millisecond
)

// Health decides whether the store is worth asking. There is one per Redis client of a process, for all dependencies.
//
// It is healthy at first and degraded after five overruns in a row, or when within one second at least five asks and at
// least half of all overran. The second begins with an overrun and, once it has passed, anew with the next one: so it
// starts with the trouble, whatever went well before does not dilute it, and an ask that goes well reads no clock.
//
// While degraded one ask each 500 ms is let through as a probe, the first of them 500 ms after the change, and none
// else: two tries a second for the whole process, however many callers there are. The first probe that succeeds makes
// it healthy.
//
// All methods may be called from many goroutines; a healthy ask costs two atomic loads and one atomic addition.
type Health struct {
	now      func() time.Time
	start    time.Time
	onChange func(degraded bool)

	degraded  atomic.Bool
	nextProbe atomic.Int64 // since start; valid while degraded
	probing   atomic.Bool  // a probe is out that has not reported

	successes atomic.Int64 // ever
	row       atomic.Int32 // overruns since the last success

	mu       sync.Mutex    // held for overruns and changes only
	since    time.Duration // when the window began, since start
	before   int64         // successes when it began
	overruns int64         // in the window; 0: there is no window
}

// NewHealth returns a Health on the given clock, whose steps must be monotonic as those of time.Now are. onChange, which
// may be nil, is called once per change, in the order of the changes; it must not block nor call Report.
func NewHealth(now func() time.Time, onChange func(degraded bool)) *Health {
	return &Health{now: now, start: now(), onChange: onChange}
}

// Degraded reports the mode without asking for a probe.
func (h *Health) Degraded() bool { return h.degraded.Load() }

// Allow reports whether to ask the store; if so, Report what came of it. While degraded it lets a probe through each
// 500 ms and is false otherwise.
func (h *Health) Allow() bool {
	if !h.degraded.Load() {
		return true
	}
	now, next := int64(h.elapsed()), h.nextProbe.Load()
	if now < next || !h.nextProbe.CompareAndSwap(next, now+int64(probeEvery)) {
		return false
	}
	h.probing.Store(true)
	return true
}

// Report tells what came of one ask. Nil and ErrBroken are a success, since the store answered; ErrUnavailable, and so
// ErrTimeout, is an overrun. Every other error, such as a caller that left, says nothing about the store: a probe that
// ends so is followed by the next one.
func (h *Health) Report(err error) {
	switch {
	case err == nil || errors.Is(err, ErrBroken):
		h.success()
	case errors.Is(err, ErrUnavailable):
		h.overrun()
	}
}

func (h *Health) success() {
	if !h.degraded.Load() {
		h.successes.Add(1)
		if h.row.Load() != 0 {
			h.row.Store(0)
		}
		return
	}
	// Only a probe proves that the trouble is over. Asks sent before the change still come in, and where half of them
	// overrun, the other half succeeds: they would flip the mode back and forth.
	if !h.probing.Load() {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.degraded.Load() && h.probing.CompareAndSwap(true, false) {
		h.change(false)
	}
}

func (h *Health) overrun() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.degraded.Load() {
		h.probing.Store(false)
		return
	}
	row := h.row.Add(1)
	now := h.elapsed()
	if h.overruns == 0 || now-h.since >= overrunWindow {
		h.since, h.before, h.overruns = now, h.successes.Load(), 0
	}
	h.overruns++
	successes := h.successes.Load() - h.before
	if row >= overrunsInARow || h.overruns >= overrunsInARow && h.overruns >= successes {
		h.nextProbe.Store(int64(now + probeEvery))
		h.probing.Store(false)
		h.change(true)
	}
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
