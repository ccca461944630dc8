package admission

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/sluicehq/sluice/bucket"
)

// healths has a Health for each store.timeout that policies have, since what is late for one is in time for another. That of
// 0 is the gate's own, which waits as long as it takes. They share their probes: a store in trouble is tried twice a second,
// however many timeouts there are.
type healths struct {
	probes    *bucket.Probes
	onChange  func(timeout time.Duration, degraded bool)
	byTimeout sync.Map // time.Duration -> *bucket.Health
}

// of is the store's health as the policy sees it; nil: as the gate itself does.
func (hs *healths) of(p *Policy) *bucket.Health {
	timeout := time.Duration(0)
	if p != nil {
		timeout = p.StoreTimeout()
	}
	h, ok := hs.byTimeout.Load(timeout)
	if !ok {
		h, _ = hs.byTimeout.LoadOrStore(timeout, bucket.NewHealth(hs.probes, func(degraded bool) { hs.onChange(timeout, degraded) }))
	}
	return h.(*bucket.Health) //nolint:forcetypeassert // nothing else is stored
}

// each calls f with every health.
func (hs *healths) each(f func(timeout time.Duration, h *bucket.Health)) {
	hs.byTimeout.Range(func(timeout, h any) bool {
		f(timeout.(time.Duration), h.(*bucket.Health)) //nolint:forcetypeassert // nothing else is stored
		return true
	})
}

// answered ends the trouble of all who give the store at least the time that a probe took.
func (hs *healths) answered(took time.Duration) {
	hs.each(func(timeout time.Duration, h *bucket.Health) {
		if h.Degraded() && (timeout == 0 || timeout >= took) {
			h.Recover()
		}
	})
}

// troubled reports whether anybody finds the store in trouble.
func (hs *healths) troubled() bool {
	found := false
	hs.each(func(_ time.Duration, h *bucket.Health) { found = found || h.Degraded() })
	return found
}

// report tells the store's health what came of an ask by the policy. All who waited for one call saw the same trouble.
func (g *Gate) report(e *entry, p *Policy, pass bucket.Pass, err error) {
	if errors.Is(err, bucket.ErrUnavailable) && !pass.Probe() && !e.limiter.Overrun() {
		return
	}
	g.healths.of(p).Report(pass, err)
	if err == nil && pass.Probe() {
		g.healths.answered(p.StoreTimeout())
	}
}

// modeChanged is called once per change of the store's health as policies of that timeout see it.
func (g *Gate) modeChanged(timeout time.Duration, degraded bool) {
	if degraded {
		g.log.ErrorContext(g.running, "the store does not answer in time; asks are answered by each policy's store.on_failure",
			slog.String("timeout", timeout.String()))
	} else {
		g.log.InfoContext(g.running, "the store answers again", slog.String("timeout", timeout.String()))
	}
	g.mu.RLock()
	defer g.mu.RUnlock()
	for _, e := range g.entries {
		p := e.policy.Load()
		if p.StoreTimeout() != timeout {
			continue
		}
		mode := storeRedis
		if degraded {
			mode = string(p.OnFailure())
		}
		g.metrics.StoreMode(e.name, mode)
	}
}

// allow reports whether to ask the store. What only reads is no try of a store in trouble: it may succeed where nothing that
// takes does.
func (g *Gate) allow(p *Policy, reads bool) (bucket.Pass, bool) {
	h := g.healths.of(p)
	if reads && h.Degraded() {
		return bucket.Pass{}, false
	}
	return h.Allow()
}

// mode is how the policy's asks are answered now.
func (g *Gate) mode(p *Policy) string {
	if g.healths.of(p).Degraded() {
		return string(p.OnFailure())
	}
	return storeRedis
}

// probeKey is written to find out whether the store takes writes again; what only reads would also succeed where Redis is
// a replica.
const probeKey = "sluice:probe"

// probe tries a store in trouble that nobody asks.
func (g *Gate) probe() {
	if !g.healths.probes.Idle() {
		return
	}
	begin := g.now()
	if err := g.client.Set(g.running, probeKey, "1", time.Minute).Err(); err == nil {
		g.healths.answered(g.now().Sub(begin))
	}
}

// Ready says in words what is not ready: the store, or a policy that is not in it. A policy whose store.timeout is too short
// for the store as it is now answers by its failure mode; that is its own trouble, and the broker is ready for the others.
func (g *Gate) Ready(ctx context.Context) []string {
	if !g.inTime() {
		return []string{"the store does not answer in time"}
	}
	var not []string
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

// inTime reports whether the store answers anybody in time: some policy, or without any the gate itself.
func (g *Gate) inTime() bool {
	g.mu.RLock()
	defer g.mu.RUnlock()
	if len(g.entries) == 0 {
		return !g.healths.of(nil).Degraded()
	}
	for _, e := range g.entries {
		if !g.healths.of(e.policy.Load()).Degraded() {
			return true
		}
	}
	return false
}
