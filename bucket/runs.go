package bucket

// run is what the script says of plain asks that follow each other and want the same: those before the first that did
// not fit were admitted, and what each of them found is worked out here from what the first found (lua/short.lua).
type run struct {
	count, done int64
	admitted    int64
	levels      []any // two numbers per limit: what it held before the run in its own measure, and a window's reset
	refused     []any // available, retry of the first, step, index of the blocking limit, then the wait of each limit
}

// refusedFixed is how many numbers of a run's refusal come before the waits.
const refusedFixed = 4

func (d *decoder) openRun(limits int) {
	d.run = run{count: d.int(), admitted: d.int()}
	d.run.levels = d.slice(2 * limits)
	if d.run.admitted < d.run.count {
		d.run.refused = d.slice(refusedFixed + limits)
	}
}

// slice takes n values as they are.
func (d *decoder) slice(n int) []any {
	if n > len(d.vals)-d.pos {
		d.bad = true
		return nil
	}
	d.pos += n
	return d.vals[d.pos-n : d.pos]
}

// at reads one number of a run.
func (d *decoder) at(vals []any, i int) int64 {
	if i >= len(vals) {
		d.bad = true
		return 0
	}
	n, ok := parseInt(vals[i])
	d.bad = d.bad || !ok
	return n
}

// ofRun answers the run's next ask.
func (d *decoder) ofRun(a *Ask, ans *Answer) {
	r, s := &d.run, a.Set
	r.done++
	taken := min(r.done, r.admitted) // so many had been admitted when this one was answered
	ans.Limits = d.stateSlots(len(s.limits))
	for i, l := range s.limits {
		level, st := d.at(r.levels, 2*i), &ans.Limits[i]
		cost := max(0, a.cost(s.unit[i]))
		if l.Kind == TokenBucket {
			used := level + taken*cost*l.Refill.P
			st.Remaining = max(0, (l.Size*l.Refill.P-used)/l.Refill.P)
			st.Reset = micros(ceilDiv(used, l.Refill.N))
		} else {
			st.Remaining = max(0, l.Size-level-taken*cost)
			st.Reset = micros(d.at(r.levels, 2*i+1))
		}
	}
	if r.done <= r.admitted {
		ans.slot = d.inner
		ans.Taken = d.amountSlots(len(s.units))
		for u := range ans.Taken {
			ans.Taken[u] = max(0, a.cost(u))
		}
		return
	}
	ans.Outcome, ans.ID = Refused, ""
	available, first, step := d.at(r.refused, 0), d.at(r.refused, 1), d.at(r.refused, 2)
	later := (r.done - r.admitted - 1) * step
	ans.Available = micros(available)
	ans.RetryAfter = micros(min(first+later, available+spreadMax))
	ans.BlockedBy = int(d.at(r.refused, 3))
	for i := range ans.Limits {
		ans.Limits[i].Wait = micros(d.at(r.refused, refusedFixed+i))
	}
}
