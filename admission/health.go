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
// 0 is the gate's own, which waits as long as it takes.
type healths struct {
	now       func() time.Time
	onChange  func(timeout time.Duration, degraded bool)
	byTimeout sync.Map // time.Duration -> *bucket.Health
}

// of is the store's health as the policy's asks see it; nil: as the gate itself does.
func (hs *healths) of(p *Policy) *bucket.Health {
	if p == nil {
		return hs.within(0)
	}
	return hs.within(p.StoreTimeout())
}

// within is the store's health for who gives it that time.
func (hs *healths) within(timeout time.Duration) *bucket.Health {
	h, ok := hs.byTimeout.Load(timeout)
	if !ok {
		h, _ = hs.byTimeout.LoadOrStore(timeout, bucket.NewHealth(hs.now, func(degraded bool) { hs.onChange(timeout, degraded) }))
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

// answered ends the trouble of all who give the store at least the time that a try took.
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

// report tells the store's health what came of an ask that waited that long. All who waited for one call saw the same
// trouble.
func (g *Gate) report(e *entry, within time.Duration, err error) {
	if errors.Is(err, bucket.ErrFull) {
		g.setFull(true)
	} else if errors.Is(err, bucket.ErrUnavailable) && !e.limiter.Overrun() {
		return
	}
	g.healths.within(within).Report(err)
}

// modeChanged is called once per change of the store's health as policies of that timeout see it.
func (g *Gate) modeChanged(timeout time.Duration, degraded bool) {
	if degraded {
		g.log.ErrorContext(g.running, "the store does not answer in time; asks are answered by each policy's store.on_failure",
			slog.String("timeout", within(timeout)))
	} else {
		g.log.InfoContext(g.running, "the store answers again", slog.String("timeout", within(timeout)))
	}
	g.tellModes(func(p *Policy) bool { return p.StoreTimeout() == timeout })
}

// within says a timeout in words.
func within(timeout time.Duration) string {
	if timeout == 0 {
		return "none"
	}
	return timeout.String()
}

// setFull notes whether Redis has memory left for what is taken. Without, it answers, but not what is asked for: plain asks are
// answered by their policy's mode, while grants are ended as ever.
func (g *Gate) setFull(full bool) {
	if g.full.Swap(full) == full {
		return
	}
	if full {
		g.log.ErrorContext(g.running, "the store has no memory left; asks are answered by each policy's store.on_failure")
	} else {
		g.log.InfoContext(g.running, "the store has memory again")
	}
	g.tellModes(func(*Policy) bool { return true })
}

// tellModes tells the metrics how the dependencies of these policies are answered from now on.
func (g *Gate) tellModes(of func(p *Policy) bool) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	for _, e := range g.entries {
		if p := e.policy.Load(); of(p) {
			g.metrics.StoreMode(e.name, g.mode(p))
		}
	}
}

// mode is how the policy's asks are answered now.
func (g *Gate) mode(p *Policy) string {
	if g.full.Load() || g.healths.of(p).Degraded() {
		return string(p.OnFailure())
	}
	return storeRedis
}

// probeKey is written by a script to find out whether the store takes what asks send: a replica answers reads.
const (
	probeKey    = "sluice:probe"
	probeSource = "return redis.call('SET', KEYS[1], '1', 'PX', 60000)"
)

// probe tries the store, tells those who find it in trouble what came of it, and returns what is wrong with it.
func (g *Gate) probe(ctx context.Context) error {
	begin := g.now()
	_, err := g.probing.Run(ctx, g.client, []string{probeKey}, nil)
	if full := errors.Is(err, bucket.ErrFull); err == nil || full {
		g.setFull(full)
		g.healths.answered(g.now().Sub(begin))
	}
	return err
}

// Ready says in words what is not ready: the store, or a policy that is not in it. A policy whose store.timeout is too short
// for the store as it is now answers by its failure mode; that is its own trouble, and the broker is ready for the others. It
// is ready also while the store has no memory left, for those who give back.
func (g *Gate) Ready(ctx context.Context) []string {
	late := []string{"the store does not answer in time"}
	if !g.inTime() {
		return late
	}
	// A store that hangs holds up one look, which all who want to know meanwhile share, and none of them for long.
	g.looking.Lock()
	l := g.look
	if l == nil {
		l = &look{done: make(chan struct{})}
		g.look = l
		if !g.inBackground(func() {
			l.not = g.notReady(g.running)
			g.looking.Lock()
			g.look = nil
			g.looking.Unlock()
			close(l.done)
		}) {
			g.looking.Unlock()
			return []string{"the gate is closed"}
		}
	}
	g.looking.Unlock()
	timer := time.NewTimer(lookPatience)
	defer timer.Stop()
	select {
	case <-l.done:
		return l.not
	case <-timer.C:
	case <-ctx.Done():
	}
	return late
}

// look is one look at whether the gate is ready.
type look struct {
	done chan struct{}
	not  []string // valid once done
}

// lookPatience is how long who asks whether the gate is ready waits for a look.
const lookPatience = time.Second

func (g *Gate) notReady(ctx context.Context) []string {
	var not []string
	if err := g.probe(ctx); err != nil && !errors.Is(err, bucket.ErrFull) {
		return []string{"the store takes no writes: " + err.Error()}
	}
	if err := g.Check(ctx); err != nil {
		not = append(not, err.Error())
	} else if gone, err := g.lost(ctx, g.someDecided(), false); err == nil {
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

// someDecided is as many of the decided as are looked at at once.
func (g *Gate) someDecided() []*entry {
	entries := g.decided()
	return entries[:min(len(entries), lookAtMost)]
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
