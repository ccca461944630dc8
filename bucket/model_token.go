package bucket

import (
	"math"
	"slices"
)

// tokens is a token bucket; see lua/token.lua for the meaning of its fields.
type tokens struct {
	born, level int64 // for a bucket without a state: when it was installed, and with how many tokens
	stored      bool

	n, p     int64 // the refill in force
	at       int64
	used     int64
	lows     []low // the oldest first
	next     int64
	promises []promise
	bounds   []int64 // the level that may stand before each promise
	cap      int64
	size     int64
	top      int64 // the level that may stand now
	debt     bool
	now      int64
}

type promise struct{ slot, cost int64 }

func decay(used, n, dt int64) int64 {
	if dt <= 0 || used <= 0 {
		return used
	}
	if dt >= ceilDiv(used, n) {
		return 0
	}
	return used - n*dt
}

func grow(n, dt, limit int64) int64 {
	if dt >= ceilDiv(limit, n) {
		return limit
	}
	return n * dt
}

// convert turns credits of p0 into credits of p, rounded up by less than two; in float64 as the script does.
func convert(x, p0, p int64) int64 {
	if x == 0 || p0 == p {
		return x
	}
	r := float64(x % p0)
	v := math.Floor(float64(x)/float64(p0))*float64(p) + math.Ceil(r*float64(p)/float64(p0)) + 1
	return int64(math.Min(float64(top), v))
}

func (b *tokens) advance(c *clock, l *Limit) {
	n, p := l.Refill.N, l.Refill.P
	b.now, b.size, b.cap, b.debt = c.now, l.Size, l.Size*p, l.Debt
	if !b.stored {
		b.stored = true
		b.used = decay(max(0, l.Size-b.level)*p, n, c.now-b.born)
		b.lows, b.next, b.promises = []low{{at: c.now}}, 0, nil
		b.n, b.p, b.at = n, p, c.now
		b.bound()
		return
	}
	at := min(b.at, c.now)
	pace, unit := n, p
	if float64(b.n)/float64(b.p) < float64(n)/float64(p) {
		pace, unit = b.n, b.p
	} else {
		b.used = convert(b.used, b.p, p)
		b.lowsIn(b.p, p)
	}
	var ahead []promise
	for _, x := range b.promises {
		cost := convert(x.cost, b.p, unit)
		if x.slot > c.now {
			ahead = append(ahead, promise{x.slot, convert(cost, unit, p)})
			continue
		}
		b.used = decay(b.used, pace, x.slot-at)
		at = max(at, x.slot)
		b.push(x.slot)
		b.used = min(top, b.used+cost)
	}
	b.used = convert(decay(b.used, pace, c.now-at), unit, p)
	b.lowsIn(unit, p)
	b.promises = ahead
	if b.used == 0 {
		b.lows = []low{{at: c.now}}
		if len(ahead) == 0 {
			b.next = 0
		}
	}
	b.n, b.p, b.at = n, p, c.now
	b.bound()
}

// low is how far used had fallen before a charge at that time, in credits. Levels rise towards the newest.
type low struct{ at, level int64 }

const maxLows = 8

// push notes the level before a charge.
func (b *tokens) push(at int64) {
	k := len(b.lows)
	if k > 0 && b.lows[k-1].at == at && b.lows[k-1].level <= b.used {
		return
	}
	for k > 0 && b.lows[k-1].level >= b.used {
		k--
	}
	b.lows = b.lows[:k]
	b.lows = append(b.lows, low{at, b.used})
	if len(b.lows) > maxLows {
		b.lows[1].level = b.lows[0].level
		b.lows = slices.Delete(b.lows, 0, 1)
	}
}

func (b *tokens) lowsIn(p0, p int64) {
	if p0 == p {
		return
	}
	for i, x := range b.lows {
		v := math.Floor(float64(x.level)/float64(p0))*float64(p) + math.Floor(float64(x.level%p0)*float64(p)/float64(p0))
		b.lows[i].level = int64(math.Min(float64(top), v))
	}
}

func (b *tokens) bound() {
	k := len(b.promises)
	b.top = b.cap
	if k == 0 {
		b.bounds = nil
		return
	}
	b.bounds = make([]int64, k)
	below := int64(0)
	for i := k - 1; i >= 0; i-- {
		x := b.promises[i]
		lim := b.cap - x.cost
		if i < k-1 {
			lim = min(lim, below+grow(b.n, b.promises[i+1].slot-x.slot, b.cap)-x.cost)
		}
		b.bounds[i] = lim
		below = lim
	}
	b.top = min(b.cap, below+grow(b.n, b.promises[0].slot-b.now, b.cap))
}

func (b *tokens) first(from, cost int64) int64 {
	c := cost * b.p
	k := len(b.promises)
	if c > b.cap {
		if !b.debt {
			return -1
		}
	} else if k == 0 || from == b.now {
		if b.used+c <= b.top {
			return from
		}
		if k == 0 {
			return max(from, b.now+ceilDiv(b.used+c-b.cap, b.n))
		}
	}
	u, a := b.used, b.now
	for i := 0; i <= k; i++ {
		last := i == k
		e := int64(math.MaxInt64)
		if !last {
			e = b.promises[i].slot
		}
		if e > from {
			s := max(a, from)
			us := decay(u, b.n, s-a)
			switch {
			case c > b.cap:
				if last {
					return s + ceilDiv(us, b.n)
				}
			default:
				t := s
				if us+c > b.cap {
					t = s + ceilDiv(us+c-b.cap, b.n)
				}
				if last || (t < e && decay(us, b.n, t-s)+c <= b.bounds[i]+grow(b.n, e-t, b.cap)) {
					return t
				}
			}
		}
		if !last {
			u = decay(u, b.n, e-a) + b.promises[i].cost
			a = e
		}
	}
	return -1
}

func (b *tokens) take(at, cost int64, _ string) {
	c := cost * b.p
	if at <= b.now {
		b.push(b.now)
		b.used = min(top, b.used+c)
		return
	}
	i := len(b.promises)
	for i > 0 && b.promises[i-1].slot > at {
		i--
	}
	b.promises = slices.Insert(b.promises, i, promise{at, c})
	b.bound()
}

func (b *tokens) give(at, _, cost int64, _ string) {
	c := cost * b.p
	if at <= b.now {
		for i := range b.lows {
			if b.lows[i].at > at {
				c = min(c, b.lows[i].level)
				for j := i; j < len(b.lows); j++ {
					b.lows[j].level -= c
				}
				break
			}
		}
		b.used = max(0, b.used-c)
		return
	}
	for i := range b.promises {
		x := &b.promises[i]
		if x.slot == at && x.cost >= c {
			x.cost -= c
			if x.cost == 0 {
				b.promises = slices.Delete(b.promises, i, i+1)
			}
			b.bound()
			return
		}
	}
}

func (b *tokens) view() (left, reset int64) {
	left = int64(0)
	if b.top > b.used {
		left = min(b.size, (b.top-b.used)/b.p)
	}
	u, a := b.used, b.now
	for _, x := range b.promises {
		u = decay(u, b.n, x.slot-a) + x.cost
		a = x.slot
	}
	return left, a - b.now + ceilDiv(u, b.n)
}

func (b *tokens) spread() *int64 { return &b.next }

func (b *tokens) clone() counter {
	c := *b
	c.promises, c.bounds, c.lows = slices.Clone(b.promises), slices.Clone(b.bounds), slices.Clone(b.lows)
	return &c
}
