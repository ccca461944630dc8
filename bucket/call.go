package bucket

import "strconv"

// call is what goes to the limits as one piece: a single ask, or several that succeed together or not at all.
type call struct {
	asks  []Ask
	group bool
	one   [1]Ask // what asks points to where there is one
}

// reply answers a call, one Answer per ask.
type reply struct {
	answers []Answer
}

func callOf(a Ask) *call {
	c := &call{}
	c.setOne(a)
	return c
}

func (c *call) setOne(a Ask) {
	c.one[0] = a
	c.asks = c.one[:]
}

// size is what the call adds to a batch: an ask for each four commands that Redis does for it, and its keys.
func (c *call) size() (asks, keys int) {
	for i := range c.asks {
		asks += (c.asks[i].commands() + commandsPerAsk - 1) / commandsPerAsk
		keys += c.asks[i].keys()
	}
	return asks, keys
}

// commandsPerAsk is how many commands of Redis an ask of a batch may take, so that no script keeps others waiting.
const commandsPerAsk = 4

// commands is how many the ask takes at most where it shares nothing with others of its batch.
func (a *Ask) commands() int {
	n := commandsPerAsk + a.Set.endsCost
	if a.Key != "" || a.SettleWithin > 0 || (a.Verb != Take && a.Verb != View) {
		n += 3 // an answer is remembered, a grant is kept or found
	}
	if a.Verb == Reserve {
		n += a.Set.linesCost
	}
	return n
}

// undoLeft gives back what callers took who left before they heard of it. An idempotency key's answer stays: its caller
// asks again.
func undoLeft(c *call, r reply) (*call, bool) {
	var back []Ask
	for i := range c.asks {
		a, ans := &c.asks[i], &r.answers[i]
		took := (a.Verb == Take || a.Verb == Reserve) && ans.Outcome == Admitted && !ans.Replayed && !a.DryRun
		if !took || a.Stands || a.Key != "" {
			continue
		}
		back = append(back, Ask{Set: a.Set, Tenant: a.Tenant, Verb: Undo, ID: a.ID, Costs: ans.Taken, slot: ans.slot})
	}
	return &call{asks: back}, len(back) > 0
}

func itoa(i int64) string { return strconv.FormatInt(i, 10) }

// plain reports whether the ask leaves nothing behind but what it takes, so that the script needs no more than how many
// of them there are.
func (a *Ask) plain() bool {
	return a.Verb == Take && a.Key == "" && a.SettleWithin == 0 && !a.DryRun && !a.Set.ends
}

// cost is what is asked of the i-th of the set's units.
func (a *Ask) cost(i int) int64 {
	if a.Costs != nil {
		return a.Costs[i]
	}
	if a.Set.units[i] == Requests {
		return 1
	}
	return 0
}

// floor is the least that may be taken of the i-th unit.
func (a *Ask) floor(i int) int64 {
	if a.Min == nil {
		return a.cost(i)
	}
	return min(a.Min[i], a.cost(i))
}

// CostOf is what the ask costs the i-th of its set's limits: the cost of the limit's unit, one of a Concurrency.
func (a *Ask) CostOf(i int) int64 {
	if u := a.Set.unit[i]; u >= 0 {
		return a.cost(u)
	}
	return 1
}

// Least is the least that the ask takes of the i-th of its set's limits.
func (a *Ask) Least(i int) int64 {
	if u := a.Set.unit[i]; u >= 0 {
		return a.floor(u)
	}
	return 1
}
