package bucket

// waiterLanes holds waiters by lane.
type waiterLanes[Q, A any] struct {
	byName map[string]*waiterLane[Q, A]
	ring   []*waiterLane[Q, A] // those that hold any, in the order of their turns
	recent *waiterLane[Q, A]   // last added to: a flood of one caller needs no look into byName
	unused []*waiterLane[Q, A]
	n      int // waiters
}

type waiterLane[Q, A any] struct {
	name       string
	head, tail *waiter[Q, A]
}

// add puts w to the end of its lane.
func (ls *waiterLanes[Q, A]) add(w *waiter[Q, A]) {
	l := ls.recent
	if l == nil || l.name != w.lane {
		if l = ls.byName[w.lane]; l == nil {
			if end := len(ls.unused) - 1; end >= 0 {
				l, ls.unused = ls.unused[end], ls.unused[:end]
			} else {
				l = &waiterLane[Q, A]{}
			}
			l.name = w.lane
			ls.byName[l.name] = l
			ls.ring = append(ls.ring, l)
		}
		ls.recent = l
	}
	if l.head == nil {
		l.head = w
	} else {
		l.tail.next = w
	}
	l.tail, w.next = w, nil
	ls.n++
}

// end forgets a lane that has become empty; ring is the caller's.
func (ls *waiterLanes[Q, A]) end(l *waiterLane[Q, A]) {
	ls.recent = nil
	delete(ls.byName, l.name)
	*l = waiterLane[Q, A]{}
	ls.unused = append(ls.unused, l)
}

// sweep removes the waiters that gone says of and keeps the order of the others and of the lanes.
func (ls *waiterLanes[Q, A]) sweep(gone func(*waiter[Q, A]) bool) {
	ring := ls.ring
	*ls = waiterLanes[Q, A]{byName: map[string]*waiterLane[Q, A]{}}
	for _, l := range ring {
		for w := l.head; w != nil; {
			next := w.next
			if !gone(w) {
				ls.add(w)
			}
			w = next
		}
	}
}
