package bucket

import "time"

// keepGrant is how long a grant is remembered beyond its last use.
const keepGrant = int64(60_000_000)

func micros(us int64) time.Duration {
	if us < 0 || us > int64(Forever/time.Microsecond) {
		return Forever
	}
	return time.Duration(us) * time.Microsecond
}

func (m *model) time() time.Time { return time.UnixMicro(m.clock.real) }

// leave records what an admitted ask leaves behind, and answers.
func (m *model) leave(a *Ask, f *failure, hit []int) Answer {
	now := m.clock.now
	g := &grant{
		state: 'h', at: f.at, finish: -1, by: -1, reserved: a.Verb == Reserve, class: a.Class, tenant: a.Tenant, key: a.Key,
	}
	for _, i := range hit {
		g.charges = append(g.charges, charged{a.Set.key(i, a.Tenant), f.cost(a.Set, i)})
	}
	// What was estimated at nothing is settled too.
	for i, u := range a.Set.unit {
		if a.SettleWithin > 0 && u >= 0 && f.taken[u] == 0 {
			g.charges = append(g.charges, charged{a.Set.key(i, a.Tenant), 0})
		}
	}
	// Where there are only shadow limits they are tried out as if they were in force, also where they had no room. Else they
	// shorten nothing.
	for _, shadow := range []bool{false, true} {
		finish := g.finish
		for _, l := range a.Set.limits {
			e := f.at + l.Hold.Microseconds()
			if l.Kind == Concurrency && l.Shadow == shadow && g.finish < 0 && (finish < 0 || e < finish) {
				finish = e
			}
		}
		g.finish = finish
	}
	ans := Answer{
		Now: m.time(), BlockedBy: -1, ID: a.ID, Limits: viewsOf(f.all, f.waits), Taken: f.taken, StartIn: micros(f.at - now),
		slot: f.at,
	}
	if g.finish >= 0 {
		ans.ExpiresAt = ans.Now.Add(micros(g.finish - now))
	}
	if a.SettleWithin > 0 {
		g.by = f.at + a.SettleWithin.Microseconds()
		ans.SettleBy = ans.Now.Add(micros(g.by - now))
	}
	if a.DryRun {
		return ans
	}
	if g.finish >= 0 || g.by >= 0 || g.reserved {
		m.put(a.ID, g)
	}
	if a.Key != "" {
		if m.undone != nil {
			if _, seen := m.undone.answers[a.Key]; !seen {
				var old *remembered
				if r, ok := m.answers[a.Key]; ok {
					old = &r
				}
				m.undone.answers[a.Key] = old
			}
		}
		kept := ans
		m.dirty = true
		m.answers[a.Key] = remembered{
			fingerprint: a.Fingerprint, until: now + a.KeyTTL.Milliseconds()*1000, answer: &kept,
		}
	}
	return ans
}

func (m *model) put(id string, g *grant) {
	if m.undone != nil {
		if _, seen := m.undone.grants[id]; !seen {
			m.undone.grants[id] = m.grants[id]
		}
	}
	m.dirty = true
	g.until = max(g.finish, g.by, g.at, m.clock.now) + keepGrant
	m.grants[id] = g
}

// verb carries out what an ask wants of a grant.
func (m *model) verb(a *Ask) Answer {
	ans := Answer{Now: m.time(), BlockedBy: -1, ID: a.ID}
	if a.Verb == Undo {
		m.undoTake(a)
		return ans
	}
	g := m.grants[a.ID]
	if g == nil || m.clock.now > g.until {
		ans.Outcome = Unknown
		return ans
	}
	switch a.Verb {
	case Settle:
		m.settle(a, g, &ans)
	case Release:
		m.release(a, g, &ans)
	case Extend:
		m.extend(a, g, &ans)
	case Cancel:
		m.cancel(a, g, &ans)
	case Take, Reserve, View, Undo:
	}
	return ans
}

// each calls f with the limit's index, its state and the charge of what the grant holds on limits that still exist.
func (m *model) each(a *Ask, g *grant, f func(i int, st counter, c charged)) {
	all := m.all(a)
	for _, c := range g.charges {
		for i := range all {
			if a.Set.key(i, a.Tenant) == c.key {
				f(i, all[i], c)
			}
		}
	}
}

// free ends the concurrency that a grant holds; it returns whether it had all ended before.
func (m *model) free(a *Ask, g *grant) bool {
	live, held := false, false
	seen := map[stateKey]bool{}
	m.each(a, g, func(i int, st counter, c charged) {
		if a.Set.limits[i].Kind == Concurrency {
			m.changes(c.key)
			held, seen[c.key] = true, true
			live = st.(*ends).release(a.ID) || live //nolint:forcetypeassert // a Concurrency's counter is ends
		}
	})
	for _, c := range g.charges { // a limit that is gone may come back
		if st, ok := m.states[c.key].(*ends); ok && !seen[c.key] && !st.log {
			live, held = st.members[a.ID] > m.clock.now || live, true
			delete(st.members, a.ID)
		}
	}
	return held && !live
}

func (m *model) settle(a *Ask, g *grant, ans *Answer) {
	now := m.clock.now
	if g.state == 's' {
		ans.Replayed, ans.Taken = true, make([]int64, len(a.Set.units))
		copy(ans.Taken, g.diffs)
		return
	}
	if g.state == 'c' || g.by < 0 || now > g.by {
		ans.Outcome = TooLate
		return
	}
	diffs := make([]int64, len(a.Set.units))
	m.each(a, g, func(i int, st counter, c charged) {
		u := a.Set.unit[i]
		if u < 0 || a.Costs[u] < 0 {
			return
		}
		d := c.amount - a.Costs[u]
		diffs[u] = d
		if d != 0 {
			m.changes(c.key)
		}
		switch {
		case d > 0:
			st.give(g.at, c.amount, d, a.ID)
		case d < 0:
			at := now
			if a.Set.limits[i].Kind == Quota {
				at = g.at
			}
			st.take(at, -d, a.ID+"+")
		}
	})
	m.free(a, g)
	g.state, g.diffs = 's', diffs
	m.put(a.ID, g)
	ans.Taken = diffs
}

func (m *model) release(a *Ask, g *grant, ans *Answer) {
	if g.state != 'h' {
		ans.Replayed = true
		return
	}
	if g.finish < 0 {
		return
	}
	late := m.free(a, g)
	g.state = 'l'
	m.put(a.ID, g)
	if late {
		ans.Outcome = TooLate
	}
}

func (m *model) extend(a *Ask, g *grant, ans *Answer) {
	finish := int64(-1)
	if g.state == 'h' {
		slots := false
		m.each(a, g, func(i int, st counter, c charged) {
			if a.Set.limits[i].Kind != Concurrency {
				return
			}
			slots = true
			held := st.(*ends) //nolint:forcetypeassert // as in free
			if !held.holds(a.ID) {
				return
			}
			m.changes(c.key)
			e := held.extend(a.ID, m.clock.now+a.MaxWait.Microseconds())
			if finish < 0 || e < finish {
				finish = e
			}
		})
		if !slots && g.finish > m.clock.now { // it was let through by a shadow limit, or the limit is gone
			finish = g.finish
		}
	}
	if finish < 0 {
		ans.Outcome = TooLate
		return
	}
	g.finish = finish
	m.put(a.ID, g)
	ans.ExpiresAt = ans.Now.Add(micros(finish - m.clock.now))
}

func (m *model) cancel(a *Ask, g *grant, ans *Answer) {
	if g.state == 'c' {
		ans.Replayed = true
		return
	}
	if g.state == 's' || !g.reserved || g.at <= m.clock.now {
		ans.Outcome = TooLate
		return
	}
	tail := int64(0)
	m.each(a, g, func(_ int, st counter, c charged) {
		m.changes(c.key)
		st.give(g.at, c.amount, c.amount, a.ID)
		tail = tailOf(st, tail)
	})
	m.leaveLine(a, g.at, tail)
	if g.key != "" {
		delete(m.answers, g.key)
	}
	g.state = 'c'
	m.put(a.ID, g)
}

// leaveLine gives back the place at the end of the line, where the slot was the last one.
func (m *model) leaveLine(a *Ask, slot, tail int64) {
	if who, ordered := anchorOf(a); ordered && slot > m.clock.now && m.lasts[who] == slot {
		m.lasts[who] = tail
	}
}

func tailOf(st counter, tail int64) int64 {
	if b, ok := st.(*tokens); ok && len(b.promises) > 0 {
		return max(tail, b.promises[len(b.promises)-1].slot)
	}
	return tail
}

// undoTake gives back what a Take took whose caller never learned of it: Costs is what was taken, slot when.
func (m *model) undoTake(a *Ask) {
	all, tail := m.all(a), int64(0)
	for i, l := range a.Set.limits {
		c := int64(1)
		if u := a.Set.unit[i]; u >= 0 {
			c = a.Costs[u]
		}
		// Whether a shadow limit was charged is not known, unless the charge has a name.
		if c > 0 && (!l.Shadow || l.Kind == Concurrency) {
			m.changes(a.Set.key(i, a.Tenant))
			all[i].give(a.slot, c, c, a.ID)
			tail = tailOf(all[i], tail)
		}
	}
	m.leaveLine(a, a.slot, tail)
	delete(m.grants, a.ID)
	m.dirty = true
}
