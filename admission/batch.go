package admission

import (
	"errors"
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
	never    map[int]string // of those that go out for their key's sake: the limit that they can never fit
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
	b := batch{decided: map[int]Decision{}, never: map[int]string{}, together: together}
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
		case limit != "" && q.Key != "" && !together:
			b.never[i] = limit
			b.asks, b.todo = append(b.asks, q), append(b.todo, i)
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
