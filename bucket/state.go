package bucket

import "strings"

// counter is the state of one limit for one holder, in memory. The methods take instants in microseconds of the
// dependency's time and costs in units; they are the Go twin of the Lua preludes of the same names, rule for rule, so
// that one is the oracle of the other.
type counter interface { //nolint:interfacebloat // what a limit is: each of its kinds needs each of them
	// advance brings the state to the present under the limit's present parameters.
	advance(c *clock, l *Limit)
	// first is the first instant from `from` on at which cost fits and every later promise still does; -1: never.
	first(from, cost int64) int64
	// take charges cost at the instant under id.
	take(at, cost int64, id string)
	// give returns cost of amount that was charged at the instant under id.
	give(at, amount, cost int64, id string)
	// view is what is left now and the time until the limit is untouched again.
	view() (left, reset int64)
	// spread is when the next refused ask is sent back.
	spread() *int64
	clone() counter
}

// clock is one decision's time: TIME and the dependency's own, which never steps back.
type clock struct {
	real, now, offset int64
}

const (
	// top is 2^53: up to it the scripts' numbers are exact.
	top = int64(1) << 53
	// spreadMax is how far beyond the instant at which an ask fits the losers of a crowd are spread.
	spreadMax = int64(60_000_000)
	// maxPromises bounds the slots a bucket keeps ahead.
	maxPromises = 256
)

func ceilDiv(a, b int64) int64 {
	q := a / b
	if q*b < a {
		q++
	}
	return q
}

// holder names whose state it is: the dependency's, or one tenant's.
type holder struct {
	tenant bool
	name   string
}

type stateKey struct {
	holder
	field string
}

func (s *Set) key(i int, tenant string) stateKey {
	k := stateKey{field: s.fields[i]}
	if s.limits[i].ofTenant() {
		k.holder = holder{tenant: true, name: strings.Clone(tenant)}
	}
	return k
}

func newCounter(l *Limit) counter {
	switch l.Kind {
	case TokenBucket:
		return &tokens{}
	case Concurrency, SlidingLog:
		return &ends{}
	case Quota:
		return &quota{}
	case SlidingWindow:
		return &sliding{}
	}
	return nil
}
