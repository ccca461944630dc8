package bucket

import (
	"maps"
	"slices"
	"time"
)

// quota is a calendar quota; see lua/window.lua.
type quota struct {
	s, e, e2 int64 // in TIME: the window and the end of the next
	c, c2    int64
	b, d     int64 // in the dependency's time: counted from, ends at
	next     int64
	size     int64
	now      int64
}

func (q *quota) advance(c *clock, l *Limit) {
	start, end, after := l.Every.Windows(time.UnixMicro(c.real))
	old := *q
	*q = quota{s: start.UnixMicro(), e: end.UnixMicro(), e2: after.UnixMicro(), size: l.Size, now: c.now}
	q.b, q.d = q.s+c.offset, q.e+c.offset
	if old.e == 0 {
		return
	}
	switch {
	case old.s > c.real && c.now < old.d: // TIME stepped back: the stored window stays in force until it would have ended
		q.s, q.e, q.e2, q.b, q.d = old.s, old.e, old.e2, old.b, old.d
		q.c, q.c2, q.next = old.c, old.c2, old.next
	case old.s <= c.real && c.real < old.e:
		q.c, q.c2, q.next, q.b = old.c, old.c2, old.next, old.b
	default:
		q.b = max(q.b, old.d)
		if (old.s > c.real && c.now < old.d+old.e2-old.e) || (old.s <= c.real && c.real < old.e2) {
			q.c = old.c2
		}
	}
}

func (q *quota) first(from, cost int64) int64 {
	if cost > q.size {
		return -1
	}
	at := from
	if at < q.d {
		if q.c+cost <= q.size {
			return at
		}
		at = q.d
	}
	d2 := q.d + q.e2 - q.e
	if at < d2 && q.c2+cost > q.size {
		return d2
	}
	return at
}

func (q *quota) take(at, cost int64, _ string) {
	if at < q.d {
		q.c += cost
	} else {
		q.c2 += cost
	}
}

func (q *quota) give(at, _, cost int64, _ string) {
	switch {
	case at >= q.d:
		q.c2 = max(0, q.c2-cost)
	case at >= q.b:
		q.c = max(0, q.c-cost)
	}
}

func (q *quota) view() (left, reset int64) { return max(0, q.size-q.c), max(0, q.d-q.now) }

func (q *quota) spread() *int64 { return &q.next }

func (q *quota) clone() counter {
	c := *q
	return &c
}

// sliding is a sliding counter; see lua/window.lua. Its arithmetic is in milliseconds.
type sliding struct {
	w, k   int64
	prev   int64
	counts map[int64]int64 // by window, k and later
	next   int64
	size   int64
	now    int64
}

func (s *sliding) advance(c *clock, l *Limit) {
	old := *s
	ms := c.now / 1000
	w := l.Window.Milliseconds()
	*s = sliding{w: w, k: ms / w, counts: map[int64]int64{}, size: l.Size, now: c.now}
	if old.w == 0 {
		return
	}
	s.next = old.next
	if old.w != w {
		sum := int64(0)
		if ms < (old.k+1)*old.w {
			sum = old.prev
		}
		for j, n := range old.counts {
			if ms < (j+2)*old.w {
				sum += n
			}
		}
		s.counts[s.k] = sum
		return
	}
	if old.k >= s.k {
		s.prev = old.prev
	}
	for j, n := range old.counts {
		switch {
		case n == 0:
		case j == s.k-1:
			s.prev = n
		case j >= s.k:
			s.counts[j] = n
		}
	}
	if s.prev == 0 && len(s.counts) == 0 {
		s.next = 0
	}
}

func (s *sliding) count(j int64) int64 {
	if j == s.k-1 {
		return s.prev
	}
	return s.counts[j]
}

func (s *sliding) first(from, cost int64) int64 {
	if cost > s.size {
		return -1
	}
	for j := from / 1000 / s.w; ; j++ {
		a, b, after := s.count(j-1), s.count(j), s.count(j+1)
		room := s.size - b - cost
		if room >= 0 && (after == 0 || room >= after) {
			e := int64(0)
			if a > 0 {
				e = max(0, s.w-room*s.w/a)
			}
			if e < s.w {
				return max(from, (j*s.w+e)*1000)
			}
		}
	}
}

func (s *sliding) take(at, cost int64, _ string) { s.counts[at/1000/s.w] += cost }

func (s *sliding) give(at, _, cost int64, _ string) {
	j := at / 1000 / s.w
	if j == s.k-1 {
		s.prev = max(0, s.prev-cost)
	} else if n, ok := s.counts[j]; ok {
		s.counts[j] = max(0, n-cost)
	}
}

func (s *sliding) view() (left, reset int64) {
	e := s.now/1000 - s.k*s.w
	cur, after := s.counts[s.k], s.counts[s.k+1]
	n := s.size*s.w - s.prev*(s.w-e) - cur*s.w
	left = n / s.w
	if n < 0 {
		left = 0
	}
	if after > 0 {
		left = min(left, s.size-cur-after)
	}
	last := int64(-1)
	if s.prev > 0 {
		last = s.k - 1
	}
	for j, n := range s.counts {
		if n > 0 {
			last = max(last, j)
		}
	}
	if last < 0 {
		return max(0, left), 0
	}
	return max(0, left), (last+2)*s.w*1000 - s.now
}

func (s *sliding) spread() *int64 { return &s.next }

func (s *sliding) clone() counter {
	c := *s
	c.counts = maps.Clone(s.counts)
	return &c
}

// ends is a set of ends: a concurrency or a sliding log; see lua/slots.lua.
type ends struct {
	log     bool
	hold    int64
	size    int64
	now     int64
	members map[string]int64
	next    int64
}

func (s *ends) advance(c *clock, l *Limit) {
	if s.members == nil {
		s.members = map[string]int64{}
	}
	s.size, s.now, s.log = l.Size, c.now, l.Kind == SlidingLog
	s.hold = l.Hold.Microseconds()
	if s.log {
		s.hold = l.Window.Microseconds()
	}
	for m, at := range s.members {
		if at <= c.now {
			delete(s.members, m)
		}
	}
}

func (s *ends) first(from, cost int64) int64 {
	if cost > s.size {
		return -1
	}
	var after []int64
	for _, at := range s.members {
		if at > from {
			after = append(after, at)
		}
	}
	need := int64(len(after)) + cost - s.size
	if need <= 0 {
		return from
	}
	slices.Sort(after)
	return after[need-1]
}

func member(id string, i int64) string { return id + ":" + itoa(i) }

// take adds no more to a log than fill it by themselves: what is settled to any cost keeps it full as long as its size does.
func (s *ends) take(at, cost int64, id string) {
	if !s.log {
		s.members[id] = at + s.hold
		return
	}
	for i := int64(1); i <= min(cost, s.size); i++ {
		s.members[member(id, i)] = at + s.hold
	}
}

func (s *ends) give(_, amount, cost int64, id string) {
	if !s.log {
		delete(s.members, id)
		return
	}
	for i := amount - cost + 1; i <= amount; i++ {
		delete(s.members, member(id, i))
	}
}

// release reports whether the grant was still running.
func (s *ends) release(id string) bool {
	_, live := s.members[id]
	delete(s.members, id)
	return live
}

func (s *ends) holds(id string) bool {
	_, live := s.members[id]
	return live
}

// extend moves the end of a grant that is held, never to an earlier one.
func (s *ends) extend(id string, at int64) int64 {
	at = max(s.members[id], min(at, s.now+s.hold))
	s.members[id] = at
	return at
}

func (s *ends) view() (left, reset int64) {
	if s.log {
		for _, at := range s.members {
			reset = max(reset, at-s.now)
		}
	}
	return max(0, s.size-int64(len(s.members))), reset
}

func (s *ends) spread() *int64 { return &s.next }

func (s *ends) clone() counter {
	c := *s
	c.members = maps.Clone(s.members)
	return &c
}
