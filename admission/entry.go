package admission

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluicehq/sluice/bucket"
)

// entry is one dependency as this process knows it.
type entry struct {
	name    string
	policy  atomic.Pointer[Policy] // version 0: a file's, never in force yet
	limiter *bucket.Limiter

	work sync.Mutex // one install or load at a time

	mu      sync.Mutex
	file    *DependencyDocument // what the policy file says; nil: Redis alone knows the policy
	pending bool                // the file's policy is not in Redis yet
	refused time.Time           // when Redis answered that it cannot be installed
	chase   *chase              // the last attempt to find the policy in force
}

const (
	// believeMissing is how long a name that Redis does not know is not asked for again.
	believeMissing = time.Second
	// maxMissing bounds the names remembered so.
	maxMissing = 10_000
	// refusedAgain is how long a policy that Redis refuses for good, as where a key is of another type, is left alone.
	refusedAgain = time.Minute
	// chaseAgain is how long a failed attempt to find the policy in force stands for all who ask.
	chaseAgain = 500 * time.Millisecond
)

// entry finds the dependency here or in Redis.
func (g *Gate) entry(ctx context.Context, name string) (*entry, error) {
	g.mu.RLock()
	e := g.entries[name]
	until := g.missing[name]
	g.mu.RUnlock()
	switch {
	case e != nil:
		return e, nil
	case g.now().Before(until):
		return nil, ErrUnknownDependency
	}
	if g.healths.of(nil).Degraded() {
		return nil, fmt.Errorf("dependency %.64q: %w", name, bucket.ErrUnavailable)
	}
	p, err := g.policies.Load(ctx, name)
	if errors.Is(err, ErrUnknownDependency) {
		g.healths.of(nil).Report(nil)
		g.mu.Lock()
		if len(g.missing) >= maxMissing {
			clear(g.missing)
		}
		g.missing[name] = g.now().Add(believeMissing)
		g.mu.Unlock()
		return nil, err
	}
	g.healths.of(nil).Report(err)
	if err != nil {
		return nil, err
	}
	return g.add(name, p), nil
}

// add registers a dependency with its first policy, or returns the entry that another call registered meanwhile.
func (g *Gate) add(name string, p *Policy) *entry {
	g.mu.Lock()
	e := g.entries[name]
	fresh := e == nil
	if fresh {
		e = &entry{name: name, limiter: g.store.Limiter(name)}
		e.policy.Store(p)
		g.entries[name] = e
		delete(g.missing, name)
	}
	g.mu.Unlock()
	if fresh {
		g.inForce(e, p)
	}
	g.metrics.StoreMode(name, g.mode(e.policy.Load()))
	return e
}

// replace makes the policy the one that asks are compiled from; e.work is held. Redis has it in force, whatever was known
// before: its number counts, since it is what the scripts see.
func (g *Gate) replace(e *entry, p *Policy) {
	e.policy.Store(p)
	g.inForce(e, p)
}

// all lists the dependencies that this process knows.
func (g *Gate) all() []*entry {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return slices.Collect(maps.Values(g.entries))
}

func (g *Gate) inForce(e *entry, p *Policy) {
	if p.version > 0 {
		g.metrics.Policy(e.name, p.version, p.Classes(), p.Limits())
	}
}

// Apply makes the document's policies the ones in force: each that differs from what Redis holds becomes a version there.
// While Redis is away it goes on trying in the background, and asks are answered by the policies' failure modes. A
// document with mistakes changes nothing. What an earlier document named and this one does not stays in force.
func (g *Gate) Apply(ctx context.Context, doc *Document) error {
	if problems := Validate(doc); len(problems) > 0 {
		return &ValidationError{Problems: problems}
	}
	compiled := map[string]*Policy{}
	for name, d := range doc.Dependencies {
		p, err := Compile(name, 0, d)
		if err != nil {
			return err
		}
		if p.OnFailure() == FailLocal {
			return fmt.Errorf("dependencies.%s.store.on_failure: local is not offered by this version; say open or closed", name)
		}
		compiled[name] = p
	}
	var entries []*entry
	for name, p := range compiled {
		g.mu.RLock()
		e := g.entries[name]
		g.mu.RUnlock()
		if e == nil {
			e = g.add(name, p)
		}
		d := p.Document()
		e.mu.Lock()
		e.file, e.pending, e.refused = &d, true, time.Time{}
		e.mu.Unlock()
		entries = append(entries, e)
	}
	var first error
	for i, e := range entries {
		err := g.install(ctx, e)
		if errors.Is(err, bucket.ErrUnavailable) { // one wait for a store that is away is enough
			g.log.WarnContext(ctx, "the store is away; policies are installed when it is back", slog.Int("policies", len(entries)-i))
			break
		}
		if err != nil && first == nil {
			first = err
		}
	}
	return first
}

// installPending tries to install what Apply could not. It ends with the first that finds the store away.
func (g *Gate) installPending() {
	for _, e := range g.all() { // and let go of the gate's lock, which may be taken while an entry's is held
		e.mu.Lock()
		due := e.pending && g.now().Sub(e.refused) >= refusedAgain
		e.mu.Unlock()
		if !due {
			continue
		}
		err := g.install(g.running, e)
		g.healths.of(nil).Report(err)
		if errors.Is(err, bucket.ErrUnavailable) {
			return
		}
		if err != nil {
			g.log.ErrorContext(g.running, "policy not installed", slog.String("dependency", e.name), slog.Any("error", err))
		}
	}
}

// install puts the file's policy into Redis.
func (g *Gate) install(ctx context.Context, e *entry) error {
	e.work.Lock()
	defer e.work.Unlock()
	return g.installing(ctx, e)
}

// installing is install; e.work is held.
func (g *Gate) installing(ctx context.Context, e *entry) error {
	e.mu.Lock()
	file, pending := e.file, e.pending
	e.mu.Unlock()
	if !pending {
		return nil
	}
	version, changed, err := g.policies.Install(ctx, e.name, *file, e.policy.Load().version)
	var p *Policy
	if err == nil {
		p, err = Compile(e.name, version, *file)
	}
	e.mu.Lock()
	if e.file == file { // else another Apply was here meanwhile
		e.pending = err != nil
	}
	if err != nil && !errors.Is(err, bucket.ErrUnavailable) {
		e.refused = g.now()
	}
	e.mu.Unlock()
	if err != nil {
		return err
	}
	g.replace(e, p)
	if changed {
		g.log.InfoContext(ctx, "policy in force", slog.String("dependency", e.name), slog.Int64("version", version))
	}
	return nil
}

// chase is one attempt to find the policy in force instead of one that is not any more. All who find that out share it.
type chase struct {
	old  *Policy
	done chan struct{}
	err  error     // valid once done
	at   time.Time // when it failed
}

// stands reports whether the attempt answers who asks now.
func (c *chase) stands(old *Policy, now time.Time) bool {
	if c == nil || c.old != old {
		return false
	}
	select {
	case <-c.done:
		return c.err != nil && now.Sub(c.at) < chaseAgain
	default:
		return true
	}
}

// follow brings the entry to the policy that Redis holds after an ask found that it is not old: another version, or none. It
// waits until the deadline, unless that is zero.
func (g *Gate) follow(ctx context.Context, e *entry, old *Policy, deadline time.Time) error {
	e.mu.Lock()
	if e.policy.Load() != old {
		e.mu.Unlock()
		return nil
	}
	c := e.chase
	if !c.stands(old, g.now()) {
		c = &chase{old: old, done: make(chan struct{})}
		e.chase = c
		if !g.inBackground(func() {
			c.err = g.catchUp(e, old)
			c.at = g.now()
			close(c.done)
		}) {
			c.err = bucket.ErrClosed
			close(c.done)
		}
	}
	e.mu.Unlock()
	var expired <-chan time.Time
	if !deadline.IsZero() {
		timer := time.NewTimer(deadline.Sub(g.now()))
		defer timer.Stop()
		expired = timer.C
	}
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
		return ctx.Err()
	case <-expired:
		return bucket.ErrTimeout
	}
}

// catchUp does what follow waits for. Redis may have come back empty, or older than what this process decided by: then that
// is brought back, its buckets as Redis has them, and empty where it has none.
func (g *Gate) catchUp(e *entry, old *Policy) error {
	e.work.Lock()
	defer e.work.Unlock()
	if e.policy.Load() != old {
		return nil
	}
	e.mu.Lock()
	pending := e.pending
	e.mu.Unlock()
	if pending {
		return g.installing(g.running, e)
	}
	p, err := g.policies.Load(g.running, e.name)
	lost := errors.Is(err, ErrUnknownDependency) || err == nil && p.origin < old.origin
	if lost {
		p, lost, err = g.policies.Restore(g.running, old)
	}
	if err != nil {
		return err
	}
	g.replace(e, p)
	if lost {
		g.metrics.Repaired("policy", 1)
		g.log.WarnContext(g.running, "Redis had lost the policy; it is back, and buckets that were lost with it are empty",
			slog.String("dependency", e.name), slog.Int64("version", p.version))
	} else {
		g.log.InfoContext(g.running, "policy followed", slog.String("dependency", e.name), slog.Int64("version", p.version))
	}
	e.mu.Lock()
	file := e.file
	e.mu.Unlock()
	if file != nil && !sameDocument(*file, p.written) {
		g.log.WarnContext(g.running, "the policy in force is another one than this broker's file has",
			slog.String("dependency", e.name), slog.Int64("version", p.version))
	}
	return nil
}
