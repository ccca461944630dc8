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

// Probes paces how often a store in trouble is tried: once each 500 ms, whichever of the Healths that share it asks. A
// process has one of them, so that it tries twice a second however many policies and callers it has.
type Probes struct {
	now   func() time.Time
	start time.Time
	next  atomic.Int64 // since start
}

// NewProbes returns Probes on the given clock, whose steps must be monotonic as those of time.Now are.
func NewProbes(now func() time.Time) *Probes { return &Probes{now: now, start: now()} }

func (p *Probes) elapsed() time.Duration { return p.now().Sub(p.start) }

// take reports whether it is time for a try, which is the caller's then.
func (p *Probes) take() bool {
	now, next := int64(p.elapsed()), p.next.Load()
	return now >= next && p.next.CompareAndSwap(next, now+int64(probeEvery))
}

// delay puts the next try off to a full interval from now.
func (p *Probes) delay() { p.next.Store(int64(p.elapsed() + probeEvery)) }

// Idle reports whether the caller may try the store by itself, because nobody who asked it did for an interval.
func (p *Probes) Idle() bool {
	return p.elapsed()-time.Duration(p.next.Load()) >= probeEvery && p.take()
}

// Health decides whether the store is worth asking, for those who give it the same time to answer.
//
// It is healthy at first and degraded after five overruns in a row, or when within one second at least five asks and at
// least half of all overran. The second begins with an overrun and, once it has passed, anew with the next one: so it
// starts with the trouble, whatever went well before does not dilute it, and an ask that goes well reads no clock.
//
// While degraded asks are let through as its Probes say, and none else. The first probe that succeeds makes it healthy.
//
// All methods may be called from many goroutines; a healthy ask costs two atomic loads and one atomic addition.
type Health struct {
	probes   *Probes
	onChange func(degraded bool)

	degraded  atomic.Bool
	period    atomic.Int64 // counts how often it has become degraded
	successes atomic.Int64 // ever
	row       atomic.Int32 // overruns since the last success

	mu       sync.Mutex    // held for overruns and changes only
	since    time.Duration // when the window began
	before   int64         // successes when it began
	overruns int64         // in the window; 0: there is no window
}

// NewHealth returns a Health whose probes are paced by those given. onChange, which may be nil, is called once per change,
// in the order of the changes; it must not block nor call Report.
func NewHealth(probes *Probes, onChange func(degraded bool)) *Health {
	return &Health{probes: probes, onChange: onChange}
}

// Pass is the leave to ask the store once.
type Pass struct {
	probe int64 // the period of trouble that it may end, 0: none
}

// Probe reports whether the ask is a try of a store in trouble.
func (p Pass) Probe() bool { return p.probe > 0 }

// Degraded reports the mode without asking for a probe.
func (h *Health) Degraded() bool { return h.degraded.Load() }

// Allow reports whether to ask the store; if so, Report what came of it.
func (h *Health) Allow() (Pass, bool) {
	if !h.degraded.Load() {
		return Pass{}, true
	}
	if !h.probes.take() {
		return Pass{}, false
	}
	return Pass{probe: h.period.Load()}, true
}

// Report tells what came of the ask that was allowed. Nil, ErrBroken and ErrFull are a success, since the store answered;
// ErrUnavailable, and so ErrTimeout, is an overrun. Every other error, such as a caller that left, says nothing about the
// store.
func (h *Health) Report(pass Pass, err error) {
	switch {
	case err == nil || errors.Is(err, ErrBroken) || errors.Is(err, ErrFull):
		h.success(pass)
	case errors.Is(err, ErrUnavailable):
		h.overrun()
	}
}

func (h *Health) success(pass Pass) {
	switch {
	case !h.degraded.Load():
		h.successes.Add(1)
		if h.row.Load() != 0 {
			h.row.Store(0)
		}
	// Only a probe proves that the trouble is over. Asks sent before the change still come in, and where half of them
	// overrun, the other half succeeds: they would flip the mode back and forth.
	case pass.probe == h.period.Load():
		h.Recover()
	}
}

// Recover ends the trouble, because a probe that somebody else reported went well within the time of this one.
func (h *Health) Recover() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.degraded.Load() {
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
	now := h.probes.elapsed()
	if h.overruns == 0 || now-h.since >= overrunWindow {
		h.since, h.before, h.overruns = now, h.successes.Load(), 0
	}
	h.overruns++
	successes := h.successes.Load() - h.before
	if row >= overrunsInARow || h.overruns >= overrunsInARow && h.overruns >= successes {
		h.period.Add(1)
		h.probes.delay()
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
