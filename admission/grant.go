package admission

import (
	"context"
	"errors"
	"time"

	"github.com/sluicehq/sluice/bucket"
)

// grantTimeout bounds the verbs on a grant. Nobody can answer them without the store, and a repetition is safe.
const grantTimeout = 2 * time.Second

// Grant settles, releases, extends or cancels what an admitted ask holds. Errors: *FieldError, ErrUnknownDependency,
// ErrUnknownGrant, ErrNotCancellable, ErrGrantEnded, bucket.ErrUnavailable, bucket.ErrOverloaded.
func (g *Gate) Grant(ctx context.Context, dependency, id string, op GrantOp) (Settlement, error) {
	e, err := g.entry(ctx, dependency)
	if err != nil {
		return Settlement{}, err
	}
	if !validID(id) {
		return Settlement{}, ErrUnknownGrant
	}
	if g.healths.within(grantTimeout).Degraded() {
		return Settlement{}, bucket.ErrUnavailable
	}
	ctx, cancel := context.WithTimeoutCause(ctx, grantTimeout, bucket.ErrTimeout)
	defer cancel()
	tenant, class, err := g.holder(ctx, e, id)
	if err != nil {
		g.report(e, grantTimeout, err)
		return Settlement{}, err
	}
	for t := (turn{}); ; {
		p := e.policy.Load()
		q, err := p.compileGrant(id, tenant, class, op)
		if err != nil {
			return Settlement{}, err
		}
		ans, err := e.limiter.Do(ctx, q, t.left(g.now(), grantTimeout))
		again, err := g.after(ctx, e, p, &t, err)
		switch {
		case again:
		case err == nil:
			return g.settlement(&q, &ans)
		default:
			return Settlement{}, err
		}
	}
}

// holder reads whose the grant is.
func (g *Gate) holder(ctx context.Context, e *entry, id string) (tenant, class string, err error) {
	tenant, class, err = g.store.Holder(ctx, e.name, id)
	if errors.Is(err, bucket.ErrNoGrant) {
		return "", "", ErrUnknownGrant
	}
	return tenant, class, err
}

// compileGrant turns an operation on a grant of the tenant and class into what the limits are asked.
func (p *Policy) compileGrant(id, tenant, class string, op GrantOp) (bucket.Ask, error) {
	// What is held is counted also by limits that are now confined to other classes, and after the class was removed.
	set := p.wholeSet(tenant, class)
	var err error
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
