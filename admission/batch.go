package admission

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"time"

	"github.com/sluicehq/sluice/bucket"
)

// maxBatch is how many asks a batch holds at most.
const maxBatch = 1000

// batch is a compiled batch: what is asked, of which of the caller's asks it is, and the decisions on what can never fit.
type batch struct {
	asks     []bucket.Ask
	todo     []int
	decided  map[int]Decision
	together bool
}

// compileBatch compiles those of the asks that todo lists.
func (p *Policy) compileBatch(asks []Ask, todo []int, together bool, now time.Time) (batch, error) {
	most := maxBatch
	if together {
		most = bucket.MaxGroup
	}
	if len(asks) == 0 || len(asks) > most {
		return batch{}, &FieldError{Field: "items", Message: "must hold 1 to " + strconv.Itoa(most) + " asks"}
	}
	b := batch{decided: map[int]Decision{}, together: together}
	for _, i := range todo {
		at := "items[" + strconv.Itoa(i) + "]."
		q, limit, err := p.compile(&asks[i])
		if wrong, ok := errors.AsType[*FieldError](err); ok {
			return batch{}, &FieldError{Field: at + wrong.Field, Message: wrong.Message}
		}
		switch {
		case err != nil:
			return batch{}, err
		case together && asks[i].DryRun != asks[0].DryRun:
			return batch{}, &FieldError{Field: at + "dry_run", Message: "must be the same for all items of an all-or-nothing batch"}
		case limit != "":
			b.decided[i] = p.neverFits(q.Set, limit, now)
		default:
			b.asks, b.todo = append(b.asks, q), append(b.todo, i)
		}
	}
	if !together {
		return b, nil
	}
	if len(b.decided) == 0 {
		if i, limit := sumNeverFits(b.asks); i >= 0 {
			b.decided[b.todo[i]] = p.neverFits(b.asks[i].Set, limit, now)
		}
	}
	if len(b.decided) > 0 {
		for k, i := range b.todo {
			if _, done := b.decided[i]; !done {
				b.decided[i] = p.decision(&b.asks[k], &bucket.Answer{Outcome: bucket.Aborted, Now: now, BlockedBy: -1})
			}
		}
		b.asks, b.todo = nil, nil
	}
	return b, nil
}

// sumNeverFits names the ask with which what several asks take of one limit at the same instant is more than it ever has,
// and the limit; -1: none. One ask alone may go into debt, and reservations have instants of their own.
func sumNeverFits(asks []bucket.Ask) (int, string) {
	type holder struct{ limit, tenant, class string }
	sums, members := map[holder]int64{}, map[holder]int{}
	for i := range asks {
		q := &asks[i]
		if q.Verb == bucket.Reserve {
			continue
		}
		for j, l := range q.Set.Limits() {
			h := holder{limit: l.Name}
			if l.Per == bucket.PerTenant || l.Per == bucket.PerTenantClass {
				h.tenant = q.Tenant
			}
			if l.Per == bucket.PerClass || l.Per == bucket.PerTenantClass {
				h.class = q.Class
			}
			c := q.Least(j)
			if c == 0 || l.Shadow {
				continue
			}
			sums[h] += c
			members[h]++
			if members[h] > 1 && sums[h] > l.Size {
				return i, l.Name
			}
		}
	}
	return -1, ""
}

// compileGrant turns an operation on a grant of the tenant and class into what the limits are asked.
func (p *Policy) compileGrant(id, tenant, class string, op GrantOp) (bucket.Ask, error) {
	set, err := p.Set(tenant, class)
	if err != nil {
		// The class was removed since; its grants are counted where the default's are.
		if set, err = p.Set(tenant, DefaultClass); err != nil {
			return bucket.Ask{}, err
		}
	}
	q := bucket.Ask{Set: set, Tenant: tenant, Class: class, ID: id}
	switch op.Verb {
	case GrantSettle:
		q.Verb = bucket.Settle
		if len(op.Costs) == 0 {
			return q, &FieldError{Field: "cost", Message: "is missing; say what it really cost, per unit where there are several"}
		}
		if q.Costs, err = p.costs(set, "cost", op.Costs, -1); err != nil {
			return q, err
		}
	case GrantRelease:
		q.Verb = bucket.Release
	case GrantExtend:
		if op.Hold <= 0 {
			return q, &FieldError{Field: "hold", Message: "must be a duration above 0, such as 30s; a longer one than the limit's max_hold is cut to it"}
		}
		q.Verb, q.MaxWait = bucket.Extend, op.Hold
	case GrantCancel:
		q.Verb = bucket.Cancel
	default:
		return q, &FieldError{Field: "verb", Message: "must be settle, release, extend or cancel"}
	}
	return q, nil
}

// settlement tells what came of a verb on a grant.
func (g *Gate) settlement(q *bucket.Ask, ans *bucket.Answer) (Settlement, error) {
	s := Settlement{ID: q.ID, Now: ans.Now, Replayed: ans.Replayed, ExpiresAt: ans.ExpiresAt}
	switch {
	case ans.Outcome == bucket.Unknown:
		return s, ErrUnknownGrant
	case ans.Outcome == bucket.TooLate && q.Verb == bucket.Cancel:
		return s, ErrNotCancellable
	case ans.Outcome == bucket.TooLate && q.Verb == bucket.Release:
		// It had ended by itself: what the caller wants is so. It freed nothing, and that its work took longer than it may
		// hold is worth a number.
		g.metrics.Repaired("late_release", 1)
		s.Late = true
	case ans.Outcome == bucket.TooLate:
		return s, ErrGrantEnded
	}
	if q.Verb == bucket.Settle {
		s.Returned = map[string]int64{}
		for i, unit := range q.Set.Units() {
			if i < len(ans.Taken) && q.Costs[i] >= 0 {
				s.Returned[unit] = ans.Taken[i]
			}
		}
	}
	return s, nil
}

// Dependencies lists what this process and Redis know, by name.
func (g *Gate) Dependencies(ctx context.Context) ([]Summary, error) {
	names := map[string]bool{}
	g.mu.RLock()
	for name := range g.entries {
		names[name] = true
	}
	g.mu.RUnlock()
	if g.health(nil).Allow() {
		stored, err := g.policies.Names(ctx)
		g.health(nil).Report(err)
		for _, name := range stored {
			names[name] = true
		}
	}
	list := make([]Summary, 0, len(names))
	for name := range names {
		e, err := g.entry(ctx, name)
		if err != nil {
			// One policy that cannot be read does not hide the others.
			g.log.WarnContext(ctx, "policy not readable", slog.String("dependency", name), slog.Any("error", err))
			continue
		}
		list = append(list, e.policy.Load().summary())
	}
	slices.SortFunc(list, func(a, b Summary) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	return list, nil
}

func (p *Policy) summary() Summary {
	return Summary{Name: p.name, Description: p.Description(), Version: p.version, Owners: p.Owners()}
}

// Dependency is one dependency as it stands. While the store does not answer, its policy without states.
func (g *Gate) Dependency(ctx context.Context, name string) (Overview, error) {
	e, err := g.entry(ctx, name)
	if err != nil {
		return Overview{}, err
	}
	for round := 1; ; round++ {
		p := e.policy.Load()
		o := Overview{
			Summary: p.summary(), Now: g.store.Now(), Classes: p.Classes(), Limits: p.Limits(), StoreMode: g.mode(p),
		}
		if !g.health(p).Allow() {
			return o, nil
		}
		shared := p.shared()
		ans, err := e.limiter.Do(ctx, bucket.Ask{Set: shared, Verb: bucket.View}, p.StoreTimeout())
		g.report(e, p, err)
		switch {
		case err == nil:
			o.Now = ans.Now
			for i, st := range ans.Limits {
				o.States = append(o.States, LimitState{Limit: shared.Limits()[i], Remaining: st.Remaining, Reset: st.Reset})
			}
			return o, nil
		case errors.Is(err, bucket.ErrUnavailable):
			o.StoreMode = string(p.OnFailure())
			return o, nil
		case round == maxRounds || !policyMoved(err):
			return Overview{}, err
		}
		if err := g.follow(ctx, e, p, err); err != nil {
			return Overview{}, err
		}
	}
}

// shared is the set of all limits that count for the whole dependency, whatever class they are confined to.
func (p *Policy) shared() *bucket.Set {
	var limits []*bucket.Limit
	for _, l := range p.Limits() {
		if l.Per == bucket.PerDependency {
			all := *l
			all.Classes = nil
			limits = append(limits, &all)
		}
	}
	return bucket.NewSet(p.version, limits, DefaultClass)
}

// Ready says in words what is not ready: the store, or a policy that is not in it.
func (g *Gate) Ready(ctx context.Context) []string {
	var not []string
	g.healths.Range(func(_, h any) bool {
		if h.(*bucket.Health).Degraded() { //nolint:forcetypeassert // nothing else is stored
			not = []string{"the store does not answer in time"}
		}
		return len(not) == 0
	})
	if len(not) > 0 {
		return not
	}
	if err := g.Check(ctx); err != nil {
		not = append(not, err.Error())
	} else if gone, err := g.lost(ctx, false); err == nil {
		for _, e := range gone {
			not = append(not, "Redis has lost the policy of "+e.name)
		}
	}
	g.mu.RLock()
	defer g.mu.RUnlock()
	for _, e := range g.entries {
		if e.policy.Load().version == 0 {
			not = append(not, "the policy of "+e.name+" is not installed yet")
		}
	}
	slices.Sort(not)
	return not
}
