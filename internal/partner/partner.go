// Package partner is a fake partner API for demonstrations and tests. It enforces a strict limit of its own, knows
// nothing of Sluice, and counts every call that should not have been made.
package partner

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"time"
)

// DefaultKept is how many arrival times are kept unless Config says otherwise.
const DefaultKept = 10_000

// Config is the limit that a Partner enforces: a token bucket that is full at first.
type Config struct {
	// Capacity is how many calls fit at once, at least 1.
	Capacity int64
	// Refill calls come back per Per, evenly; both at least 1. Capacity x Per and Refill are at most 2^62 nanoseconds.
	Refill int64
	Per    time.Duration
	// Kept bounds the arrival times that are kept: the latest so many. If zero, DefaultKept.
	Kept int
	// Now is the clock; it must not step back, as time.Now does not. If nil, time.Now.
	Now func() time.Time
}

// Partner answers calls and counts. It is an http.Handler, and safe for concurrent use.
type Partner struct {
	capacity int64 // in credits; a call takes Per of them, and Refill come back each nanosecond
	cost     int64
	refill   int64
	kept     int
	now      func() time.Time
	config   Config

	mu         sync.Mutex
	used       int64
	last       time.Time
	calls      int64
	violations int64
	arrivals   []time.Time // a ring once it is full
	oldest     int
}

// New makes a partner. An error says which part of the limit is out of its bounds.
func New(c Config) (*Partner, error) {
	const most = int64(1) << 62
	switch {
	case c.Capacity < 1 || c.Refill < 1 || c.Per < 1 || c.Kept < 0:
		return nil, errors.New("partner: capacity, refill and per must be at least 1, kept at least 0")
	case c.Capacity > most/int64(c.Per) || c.Refill > most:
		return nil, fmt.Errorf("partner: capacity %d per %s cannot be counted exactly; choose smaller numbers", c.Capacity, c.Per)
	}
	if c.Kept == 0 {
		c.Kept = DefaultKept
	}
	if c.Now == nil {
		c.Now = time.Now //nolint:forbidigo // a partner has a clock of its own, which no decision of ours may use
	}
	return &Partner{
		capacity: c.Capacity * int64(c.Per), cost: int64(c.Per), refill: c.Refill, kept: c.Kept, now: c.Now,
		config: c, last: c.Now(),
	}, nil
}

// Call counts one call now. It reports whether the limit allows it, and if not, after how long it would: to the
// nanosecond, not sooner. A call that is not allowed takes nothing.
func (p *Partner) Call() (ok bool, retry time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.now()
	p.calls++
	p.remember(now)
	p.decay(now)
	if p.used <= p.capacity-p.cost {
		p.used += p.cost
		return true, 0
	}
	p.violations++
	return false, time.Duration(ceilDiv(p.used-(p.capacity-p.cost), p.refill))
}

// decay gives back what has refilled. What is used never exceeds 2^62, so that neither sum nor product overflows.
func (p *Partner) decay(now time.Time) {
	elapsed := int64(now.Sub(p.last))
	p.last = now
	if elapsed >= ceilDiv(p.used, p.refill) {
		p.used = 0
		return
	}
	p.used -= p.refill * max(0, elapsed)
}

func (p *Partner) remember(now time.Time) {
	if len(p.arrivals) < p.kept {
		p.arrivals = append(p.arrivals, now)
		return
	}
	p.arrivals[p.oldest] = now
	p.oldest = (p.oldest + 1) % p.kept
}

// Stats is what a partner has counted.
type Stats struct {
	Calls      int64 // all that arrived
	Violations int64 // those over the limit, answered 429
	// Arrivals are when the latest calls arrived, allowed or not, in their order.
	Arrivals []time.Time
}

// Stats gives what was counted until now.
func (p *Partner) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	arrivals := make([]time.Time, 0, len(p.arrivals))
	arrivals = append(append(arrivals, p.arrivals[p.oldest:]...), p.arrivals[:p.oldest]...)
	return Stats{Calls: p.calls, Violations: p.violations, Arrivals: arrivals}
}

// Limit says the limit in words: "10 at once, 5 per 1s".
func (p *Partner) Limit() string {
	return fmt.Sprintf("%d at once, %d per %s", p.config.Capacity, p.config.Refill, p.config.Per)
}

// ceilDiv is a/b rounded up, for a >= 0 and b >= 1.
func ceilDiv(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return a/b + 1
	}
	return (a + b - 1) / b
}
