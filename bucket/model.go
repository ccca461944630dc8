package bucket

import (
	"maps"
	"math"
	"strings"
)

// model is the limits of one dependency in memory: the same decisions as the script's, by the same rules, in Go. It is
// the oracle of the tests, and will answer in mode local. It is not safe for concurrent use.
type model struct {
	births  map[string]birth
	states  map[stateKey]counter
	lasts   map[holder]int64
	grants  map[string]*grant
	answers map[string]remembered

	offset, seen int64

	// of the decision under way
	clock  clock
	loaded map[stateKey]*loaded
	dirty  bool // something was written, and with it the time
	undone *undo
}

// loaded is a state brought to the present. It is kept only where the decision changed it, as in Redis.
type loaded struct {
	counter
	dirty bool
}

type birth struct{ at, level int64 }

// remembered is what an idempotency key holds: an admitted answer, or until when a refused caller was sent away.
type remembered struct {
	fingerprint string
	until       int64
	answer      *Answer
	told        int64
}

type grant struct {
	state          byte // h held, l released, s settled, c cancelled
	until          int64
	at, finish, by int64
	reserved       bool
	charges        []charged
	diffs          []int64
	class, tenant  string
	key            string
}

type charged struct {
	key    stateKey
	amount int64
}

// newModel returns the limits of a dependency whose policy is installed at the instant, a time of the Redis clock in
// microseconds. Token buckets start with their Initial level, and those installed by a later install empty.
func newModel(at int64, limits []*Limit) *model {
	m := &model{
		births: map[string]birth{}, states: map[stateKey]counter{}, lasts: map[holder]int64{}, grants: map[string]*grant{},
		answers: map[string]remembered{},
	}
	for _, l := range limits {
		if l.Kind == TokenBucket {
			m.births[l.Identity()] = birth{at, l.Initial}
		}
	}
	return m
}

// install records a policy that replaces the one in force: buckets that it adds start empty, those that it drops are
// forgotten.
func (m *model) install(at int64, limits []*Limit) {
	m.open(at)
	old := m.births
	m.births = map[string]birth{}
	for _, l := range limits {
		if l.Kind != TokenBucket {
			continue
		}
		b, ok := old[l.Identity()]
		if !ok {
			b = birth{m.clock.now, 0}
			// What a former limit of that identity left behind has filled up since. Tenants' states are not looked for.
			maps.DeleteFunc(m.states, func(k stateKey, _ counter) bool {
				id, _, _ := strings.Cut(k.field, "/")
				return !k.tenant && id == l.Identity()
			})
		}
		m.births[l.Identity()] = b
	}
}

func (m *model) open(at int64) {
	m.clock = clock{real: at, now: at + m.offset, offset: m.offset}
	if back := m.seen - m.clock.now; back > 0 {
		m.clock.offset += back
		m.clock.now = m.seen
	}
	m.dirty = false
	m.loaded = map[stateKey]*loaded{}
}

// decide answers a batch at the instant of the Redis clock.
func (m *model) decide(at int64, batch []call) []reply {
	m.open(at)
	replies := make([]reply, len(batch))
	for i := range batch {
		c := &batch[i]
		if c.group {
			replies[i] = m.group(c.asks)
			continue
		}
		answers := make([]Answer, len(c.asks))
		for j := range c.asks {
			answers[j] = m.one(&c.asks[j])
		}
		replies[i] = reply{answers}
	}
	for k, st := range m.loaded {
		if st.dirty {
			m.states[k] = st.counter
		}
	}
	if m.dirty {
		m.seen, m.offset = m.clock.now, m.clock.offset
	}
	return replies
}

// at brings one limit's state to the present, once per decision.
func (m *model) at(s *Set, i int, tenant string) counter {
	k := s.key(i, tenant)
	if st := m.loaded[k]; st != nil {
		return st.counter
	}
	st, ok := m.states[k]
	if ok {
		st = st.clone()
	} else {
		st = newCounter(s.limits[i])
		if t, is := st.(*tokens); is {
			b, known := m.births[s.limits[i].Identity()]
			if !known {
				b = birth{m.clock.now, 0}
			}
			t.born, t.level = b.at, b.level
		}
	}
	st.advance(&m.clock, s.limits[i])
	m.loaded[k] = &loaded{counter: st}
	return st
}

func (m *model) all(a *Ask) []counter {
	list := make([]counter, len(a.Set.limits))
	for i := range list {
		list[i] = m.at(a.Set, i, a.Tenant)
	}
	return list
}

func (m *model) one(a *Ask) Answer {
	switch a.Verb {
	case Take, Reserve:
		if !a.DryRun {
			return m.ask(a)
		}
		var ans Answer
		var f *failure
		m.trial(func() bool {
			ans, f = m.try(a)
			return f != nil
		})
		if f != nil {
			return m.refused(a, f)
		}
		return ans
	case View:
		return Answer{Now: m.time(), BlockedBy: -1, Limits: viewsOf(m.all(a), nil), Taken: make([]int64, len(a.Set.units))}
	case Undo, Settle, Release, Extend, Cancel:
		return m.verb(a)
	}
	return Answer{Outcome: Unknown}
}

func (m *model) ask(a *Ask) Answer {
	ans, f := m.try(a)
	if f != nil {
		return m.refused(a, f)
	}
	return ans
}

// failure is why an ask does not fit now.
type failure struct {
	all    []counter
	list   []counter // what must fit
	costs  []int64
	waits  []int64 // by limit
	taken  []int64
	at     int64
	told   int64
	reject []bool // parallel to list: refuses an ask that may wait
}

// try takes and returns the answer, or the failure.
func (m *model) try(a *Ask) (Answer, *failure) {
	told := int64(0)
	if a.Key != "" {
		r, ok := m.answers[a.Key]
		switch {
		case !ok || (r.answer != nil && m.clock.now > r.until):
		case r.answer == nil:
			told = r.told
		case r.fingerprint != a.Fingerprint:
			return Answer{Outcome: Mismatch, Now: m.time(), BlockedBy: -1}, nil
		default:
			ans := *r.answer
			ans.Replayed = true
			ans.StartIn = max(0, ans.Now.Add(ans.StartIn).Sub(m.time()))
			ans.Now = m.time()
			if len(ans.Taken) != len(a.Set.units) || len(ans.Limits) != len(a.Set.limits) {
				ans.Taken, ans.Limits = nil, nil // the policy's limits have changed since
			}
			return ans, nil
		}
	}
	var hit []int
	f := m.attempt(a, &hit)
	f.told = told
	if !f.fits() {
		return Answer{}, f
	}
	return m.leave(a, f, hit), nil
}

func (f *failure) fits() bool { return f.list == nil }

// attempt takes and lists the limits that it charged in hit, or says why it does not fit.
func (m *model) attempt(a *Ask, hit *[]int) *failure {
	s, now := a.Set, m.clock.now
	f := &failure{all: m.all(a), at: now, waits: make([]int64, len(s.limits))}
	f.taken = amounts(a, f.all)
	fits := true
	for i, l := range s.limits {
		c := f.cost(s, i)
		if c == 0 {
			continue
		}
		t := f.all[i].first(now, c)
		if t < 0 {
			f.waits[i] = -1
		} else {
			f.waits[i] = t - now
		}
		if l.Shadow {
			continue
		}
		f.list, f.costs, f.reject = append(f.list, f.all[i]), append(f.costs, c), append(f.reject, l.OnExceeded == Reject)
		if t != now && (a.Verb != Reserve || l.OnExceeded == Reject) {
			fits = false
		}
	}
	wait := a.MaxWait.Microseconds()
	who, ordered := anchorOf(a)
	if a.Verb == Reserve {
		from := now
		if ordered {
			from = max(from, min(m.lasts[who], now+spreadMax))
		}
		f.at = m.joint(f.list, f.costs, from, 1)
		if f.at < 0 || f.at-now > wait {
			fits = false
		}
		for _, st := range f.list {
			if b, ok := st.(*tokens); ok && fits && f.at > now && len(b.promises) >= maxPromises {
				fits = false
				f.at = b.promises[0].slot + wait
			}
		}
	}
	if !fits {
		for i, l := range s.limits {
			if a.Verb == Reserve && f.waits[i] == 0 && l.Kind == TokenBucket && !l.Shadow && f.at > now {
				f.waits[i] = f.at - now
			}
		}
		if f.list == nil {
			f.list = []counter{}
		}
		return f
	}
	for i, l := range s.limits {
		c := f.cost(s, i)
		if c == 0 || (l.Shadow && f.all[i].first(f.at, c) != f.at) {
			continue
		}
		m.changes(s.key(i, a.Tenant))
		f.all[i].take(f.at, c, a.ID)
		*hit = append(*hit, i)
	}
	if a.Verb == Reserve && ordered {
		m.lasts[who] = max(m.lasts[who], f.at)
	}
	f.list = nil
	return f
}

// cost is what is asked of the i-th limit.
func (f *failure) cost(s *Set, i int) int64 {
	if u := s.unit[i]; u >= 0 {
		return f.taken[u]
	}
	return 1
}

func anchorOf(a *Ask) (holder, bool) {
	switch a.Set.anchor {
	case anchorDependency:
		return holder{}, true
	case anchorTenant:
		return holder{tenant: true, name: a.Tenant}, true
	case anchorNone:
	}
	return holder{}, false
}

// amounts is what is asked of each unit: the cost, or with a minimum what is left of it.
func amounts(a *Ask, all []counter) []int64 {
	am := make([]int64, len(a.Set.units))
	for u := range am {
		am[u] = a.cost(u)
		if a.floor(u) < am[u] {
			for i, l := range a.Set.limits {
				if a.Set.unit[i] == u && !l.Shadow {
					left, _ := all[i].view()
					am[u] = min(am[u], left)
				}
			}
			am[u] = max(am[u], a.floor(u))
		}
	}
	return am
}

// joint is the first instant from `from` on at which every cost fits, -1: never. With a grid, only whole multiples of it
// after now are tried.
func (m *model) joint(list []counter, costs []int64, from, grid int64) int64 {
	t := from
	for range 1000 {
		moved := false
		for i, st := range list {
			x := st.first(t, costs[i])
			if x < 0 {
				return -1
			}
			if x > t {
				t = m.clock.now + ceilDiv(x-m.clock.now, grid)*grid
				moved = true
			}
		}
		if !moved {
			return t
		}
	}
	return -1
}

// whenFits is the first instant, on whole milliseconds, at which a refused ask fits.
func (m *model) whenFits(a *Ask, f *failure) int64 {
	if a.Verb != Reserve {
		return m.joint(f.list, f.costs, m.clock.now, 1000)
	}
	var list []counter
	var costs []int64
	for i := range f.list {
		if f.reject[i] {
			list, costs = append(list, f.list[i]), append(costs, f.costs[i])
		}
	}
	now, wait, at := m.clock.now, a.MaxWait.Microseconds(), f.at
	last := int64(0)
	if who, ordered := anchorOf(a); ordered {
		last = min(m.lasts[who], now+spreadMax)
	}
	for range 1000 {
		if at < 0 {
			return -1
		}
		t := m.joint(list, costs, now+ceilDiv(max(0, at-wait-now), 1000)*1000, 1000)
		if t < 0 {
			return -1
		}
		at = m.joint(f.list, f.costs, max(t, last), 1)
		if at >= 0 && at-t <= wait {
			return t
		}
	}
	return -1
}

func (m *model) refused(a *Ask, f *failure) Answer {
	ans, back := m.refuse(a, f.all, f.waits, f.taken, m.whenFits(a, f), f.told)
	if a.Key != "" && back > m.clock.now && !a.DryRun {
		m.answers[a.Key] = remembered{told: back}
		m.dirty = true
	}
	return ans
}

// refuse answers an ask that fits at `fit`, -1: never. It spreads those refused together, unless this caller was told a
// time before.
func (m *model) refuse(a *Ask, all []counter, waits, taken []int64, fit, told int64) (Answer, int64) {
	now := m.clock.now
	worst, blocked := int64(-1), -1
	for i, l := range a.Set.limits {
		w := waits[i]
		if l.Shadow || w == 0 {
			continue
		}
		if w < 0 {
			w = top
		}
		if w > worst {
			worst, blocked = w, i
		}
	}
	back := fit
	if fit >= 0 && blocked >= 0 {
		l := a.Set.limits[blocked]
		next := all[blocked].spread()
		at := max(fit, min(*next, fit+spreadMax))
		switch {
		case told > now:
			back = max(fit, told)
		case a.DryRun:
			back = at
		default:
			c := int64(1)
			if u := a.Set.unit[blocked]; u >= 0 {
				c = taken[u]
			}
			sp := l.spacing()
			gap := math.Ceil(float64(c) * float64(sp.P) / float64(sp.N))
			*next = int64(math.Min(float64(at)+gap, float64(fit+spreadMax)))
			back = at
			m.changes(a.Set.key(blocked, a.Tenant))
		}
	}
	ans := Answer{Outcome: Refused, Now: m.time(), BlockedBy: blocked, Limits: viewsOf(all, waits), Available: Forever, RetryAfter: Forever}
	if fit >= 0 {
		ans.Available, ans.RetryAfter = micros(fit-now), micros(back-now)
	}
	return ans, back
}

func viewsOf(all []counter, waits []int64) []State {
	out := make([]State, len(all))
	for i, st := range all {
		left, reset := st.view()
		out[i] = State{Remaining: left, Reset: micros(reset)}
		if waits != nil {
			out[i].Wait = micros(waits[i])
		}
	}
	return out
}
