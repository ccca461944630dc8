package admission

import (
	"context"
	"errors"
	"log/slog"
	"slices"

	"github.com/sluicehq/sluice/bucket"
)

// Dependencies lists what this process and Redis know, by name.
func (g *Gate) Dependencies(ctx context.Context) ([]Summary, error) {
	names := map[string]bool{}
	g.mu.RLock()
	for name := range g.entries {
		names[name] = true
	}
	g.mu.RUnlock()
	if !g.healths.of(nil).Degraded() {
		stored, err := g.policies.Names(ctx)
		g.healths.of(nil).Report(err)
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
	for t := (turn{}); ; {
		p := e.policy.Load()
		o := Overview{
			Summary: p.summary(), Now: g.store.Now(), Classes: p.Classes(), Limits: p.Limits(), StoreMode: g.mode(p),
		}
		if g.healths.of(p).Degraded() {
			return o, nil
		}
		shared := p.shared()
		ans, err := e.limiter.Do(ctx, bucket.Ask{Set: shared, Verb: bucket.View}, t.left(g.now(), p.StoreTimeout()))
		again, err := g.after(ctx, e, p, &t, err)
		switch {
		case again:
		case err == nil:
			o.Now = ans.Now
			for i, st := range ans.Limits {
				o.States = append(o.States, LimitState{Limit: shared.Limits()[i], Remaining: st.Remaining, Reset: st.Reset})
			}
			return o, nil
		case errors.Is(err, bucket.ErrUnavailable):
			o.StoreMode = string(p.OnFailure())
			return o, nil
		default:
			return Overview{}, err
		}
	}
}

// shared is the set of all limits that count for the whole dependency, whatever class they are confined to.
func (p *Policy) shared() *bucket.Set {
	var limits []*bucket.Limit
	for _, l := range p.Limits() {
		if l.Per == bucket.PerDependency {
			limits = append(limits, l)
		}
	}
	return bucket.NewWholeSet(p.version, limits, DefaultClass)
}
