package bucket

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// decoder reads the script's reply to a batch.
type decoder struct {
	vals  []any
	pos   int
	text  string // numbers that come before the next of vals
	now   time.Time
	inner int64 // the dependency's time
	run   run   // the run that is being read
	bad   bool

	// All answers of a batch are carved from one piece each.
	states  []State
	amounts []int64
}

func (d *decoder) int() int64 {
	if d.text != "" {
		var number string
		number, d.text, _ = strings.Cut(d.text, " ")
		n, err := strconv.ParseInt(number, 10, 64)
		d.bad = d.bad || err != nil
		return n
	}
	if d.pos >= len(d.vals) {
		d.bad = true
		return 0
	}
	n, ok := parseInt(d.vals[d.pos])
	d.pos++
	d.bad = d.bad || !ok
	return n
}

func (d *decoder) string() string {
	if d.pos >= len(d.vals) {
		d.bad = true
		return ""
	}
	s, ok := d.vals[d.pos].(string)
	d.pos++
	d.bad = d.bad || !ok
	return s
}

// answer reads the reply to one ask.
func (d *decoder) answer(a *Ask) Answer {
	ans := Answer{Now: d.now, BlockedBy: -1, ID: a.ID}
	if d.run.done < d.run.count {
		d.ofRun(a, &ans)
		return ans
	}
	switch code := d.int(); code {
	case 8:
		d.openRun(len(a.Set.limits))
		d.ofRun(a, &ans)
	case 0, 9:
		if code == 9 {
			d.text = d.string()
		}
		start, finish := d.int(), d.int()
		d.admitted(a, &ans, start, finish)
		if a.Verb == View {
			ans.ID, ans.slot = "", 0
		}
		d.bad = d.bad || d.text != ""
	case 1:
		ans.Outcome = Refused
		ans.Available, ans.RetryAfter = micros(d.int()), micros(d.int())
		ans.BlockedBy = int(d.int())
		ans.Limits = d.limits(len(a.Set.limits))
		if ans.BlockedBy < 0 {
			ans.BlockedBy = -1
		}
		ans.ID = ""
	case 2:
		ans = d.replayed(a, d.string())
	case 3:
		ans.Outcome, ans.ID = Mismatch, ""
	case 4:
		ans.Outcome = Unknown
	case 5:
		ans.Outcome = TooLate
	case 6:
		ans.Outcome, ans.ID = Aborted, ""
	case 7:
		d.done(a, &ans)
	default:
		d.bad = true
	}
	return ans
}

// stateSlots and amountSlots return n zeros of the batch's.
func (d *decoder) stateSlots(n int) []State {
	if n > len(d.states) {
		return make([]State, n)
	}
	out := d.states[:n:n]
	d.states = d.states[n:]
	return out
}

func (d *decoder) amountSlots(n int) []int64 {
	if n > len(d.amounts) {
		return make([]int64, n)
	}
	out := d.amounts[:n:n]
	d.amounts = d.amounts[n:]
	return out
}

func (d *decoder) limits(n int) []State {
	out := d.stateSlots(n)
	for i := range out {
		out[i].Remaining = d.int()
		out[i].Reset, out[i].Wait = micros(d.int()), micros(d.int())
	}
	return out
}

func (d *decoder) admitted(a *Ask, ans *Answer, start, finish int64) {
	ans.StartIn = micros(start)
	ans.slot = d.inner + start
	if finish >= 0 {
		ans.ExpiresAt = d.now.Add(micros(finish))
	}
	if a.SettleWithin > 0 {
		ans.SettleBy = d.now.Add(micros(start) + a.SettleWithin)
	}
	ans.Taken = d.amountSlots(len(a.Set.units))
	for u := range ans.Taken {
		ans.Taken[u] = d.int()
	}
	ans.Limits = d.limits(len(a.Set.limits))
}

// replayed reads a remembered answer: "id time settle-in units limits" and what followed the code of the reply. Where the
// policy's limits have changed since, the answer stands without their states.
func (d *decoder) replayed(a *Ask, raw string) Answer {
	id, rest, _ := strings.Cut(raw, " ")
	r := decoder{text: rest}
	r.now = time.UnixMicro(r.int())
	settle, units, limits := r.int(), int(r.int()), int(r.int())
	start, finish := r.int(), r.int()
	ans := Answer{Now: r.now, BlockedBy: -1, ID: id, Replayed: true}
	if units == len(a.Set.units) && limits == len(a.Set.limits) {
		r.admitted(&Ask{Set: a.Set}, &ans, start, finish)
	} else {
		ans.StartIn = micros(start)
		if finish >= 0 {
			ans.ExpiresAt = ans.Now.Add(micros(finish))
		}
	}
	ans.slot = 0
	// Its slot stands; how far ahead it lies is told anew.
	ans.StartIn = max(0, ans.Now.Add(ans.StartIn).Sub(d.now))
	if settle >= 0 {
		ans.SettleBy = ans.Now.Add(micros(settle))
	}
	ans.Now = d.now
	d.bad = d.bad || r.bad
	return ans
}

func (d *decoder) done(a *Ask, ans *Answer) {
	switch a.Verb {
	case Settle:
		ans.Replayed = d.int() == 1
		ans.Taken = make([]int64, len(a.Set.units))
		for u := range ans.Taken {
			ans.Taken[u] = d.int()
		}
	case Extend:
		ans.ExpiresAt = d.now.Add(micros(d.int()))
	case Release, Cancel:
		ans.Replayed = d.int() == 1
	case Take, Reserve, View, Undo:
	}
}

// decode reads the reply to a batch, or says why there is none: ErrNoPolicy, a *ChangedError, errStale with the
// time of Redis, or ErrUnavailable where a later call was faster.
func decode(raw any, batch []*call) ([]reply, time.Time, error) {
	vals, ok := raw.([]any)
	if !ok || len(vals) == 0 {
		return nil, time.Time{}, fmt.Errorf("bucket: decide replied %T", raw)
	}
	d := &decoder{vals: vals}
	switch status := d.string(); status {
	case "ok":
	case "policy":
		return nil, time.Time{}, ErrNoPolicy
	case "changed":
		return nil, time.Time{}, &ChangedError{Version: d.int()}
	case "late":
		return nil, time.Time{}, fmt.Errorf("%w: a later call was faster", ErrUnavailable)
	case "stale":
		return nil, time.UnixMicro(d.int()), errStale
	default:
		return nil, time.Time{}, fmt.Errorf("bucket: decide replied status %q", status)
	}
	d.now = time.UnixMicro(d.int())
	d.inner = d.int()
	asks, states, amounts := 0, 0, 0
	for _, c := range batch {
		asks += len(c.asks)
		for i := range c.asks {
			states += len(c.asks[i].Set.limits)
			amounts += len(c.asks[i].Set.units)
		}
	}
	answers := make([]Answer, asks)
	d.states, d.amounts = make([]State, states), make([]int64, amounts)
	replies := make([]reply, len(batch))
	for i, c := range batch {
		n := len(c.asks)
		replies[i].answers, answers = answers[:n:n], answers[n:]
		for j := range c.asks {
			replies[i].answers[j] = d.answer(&c.asks[j])
		}
	}
	if d.bad || d.pos != len(vals) || d.run.done < d.run.count {
		return nil, d.now, fmt.Errorf("bucket: decide replied %d values, %d were read", len(vals), d.pos)
	}
	return replies, d.now, nil
}
