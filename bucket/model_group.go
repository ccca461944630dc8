package bucket

import (
	"maps"
	"slices"
)

// undo is what was before an all-or-nothing group or a dry run.
type undo struct {
	states  map[stateKey]loaded
	lasts   map[holder]int64
	grants  map[string]*grant
	answers map[string]*remembered
}

// changes is called before a state changes.
func (m *model) changes(k stateKey) {
	m.dirty = true
	st := m.loaded[k]
	if m.undone != nil {
		if _, seen := m.undone.states[k]; !seen {
			m.undone.states[k] = loaded{st.clone(), st.dirty}
		}
	}
	st.dirty = true
}

// trial runs f and takes back what it did unless it returns true.
func (m *model) trial(f func() bool) {
	u := &undo{states: map[stateKey]loaded{}, lasts: map[holder]int64{}, grants: map[string]*grant{}, answers: map[string]*remembered{}}
	maps.Copy(u.lasts, m.lasts)
	m.undone = u
	dirty := m.dirty
	keep := f()
	m.undone = nil
	if keep {
		return
	}
	m.dirty = dirty
	for k, st := range u.states {
		m.loaded[k] = &st
	}
	m.lasts = u.lasts
	for id, g := range u.grants {
		if g == nil {
			delete(m.grants, id)
		}
	}
	for k, r := range u.answers {
		if r == nil {
			delete(m.answers, k)
		} else {
			m.answers[k] = *r
		}
	}
}

// group admits all asks or none.
func (m *model) group(asks []Ask) reply {
	answers := make([]Answer, len(asks))
	failed, fit := -1, int64(-2) // fit: of a reservation, behind the members before it
	var f *failure
	m.trial(func() bool {
		for i := range asks {
			answers[i], f = m.try(&asks[i])
			if f != nil || answers[i].Outcome == Mismatch {
				failed = i
				if f != nil && asks[i].Verb == Reserve {
					fit = m.whenFits(&asks[i], f)
				}
				return false
			}
		}
		return !asks[0].DryRun
	})
	if failed < 0 {
		return reply{answers}
	}
	for i := range answers {
		if i != failed {
			answers[i] = Answer{Outcome: Aborted, Now: m.time(), BlockedBy: -1}
		}
	}
	if f == nil {
		return reply{answers}
	}
	totals := map[stateKey]int64{}
	states := map[stateKey]counter{}
	var keys []stateKey
	for i := range asks {
		a := &asks[i]
		for j, l := range a.Set.limits {
			c := int64(1)
			if u := a.Set.unit[j]; u >= 0 {
				c = a.floor(u)
			}
			if c == 0 || l.Shadow {
				continue
			}
			k := a.Set.key(j, a.Tenant)
			if totals[k] == 0 {
				keys = append(keys, k)
				states[k] = m.at(a.Set, j, a.Tenant)
			}
			totals[k] += c
		}
	}
	var list []counter
	var costs []int64
	for _, k := range keys {
		list, costs = append(list, states[k]), append(costs, totals[k])
	}
	a := &asks[failed]
	all := m.all(a)
	waits := f.waits
	if fit == -2 {
		waits, fit = make([]int64, len(a.Set.limits)), m.joint(list, costs, m.clock.now, 1000)
		for j, l := range a.Set.limits {
			if c := totals[a.Set.key(j, a.Tenant)]; c > 0 && !l.Shadow {
				waits[j] = all[j].first(m.clock.now, c)
				if waits[j] >= 0 {
					waits[j] -= m.clock.now
				}
			}
		}
	}
	answers[failed], _ = m.refuse(a, all, waits, f.taken, fit, 0)
	return reply{slices.Clip(answers)}
}
