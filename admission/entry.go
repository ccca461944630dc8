package admission

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluicehq/sluice/bucket"
)

// entry is one dependency as this process knows it.
type entry struct {
	name    string
	policy  atomic.Pointer[Policy]
	limiter *bucket.Limiter

	decided atomic.Bool // Redis held a policy of the dependency before

	installed atomic.Bool         // the file's policy is in Redis
	mu        sync.Mutex          // one install or load at a time
	file      *DependencyDocument // what the policy file says; nil: Redis alone knows the policy
}

const (
	// believeMissing is how long a name that Redis does not know is not asked for again.
	believeMissing = time.Second
	// maxMissing bounds the names remembered so.
	maxMissing = 10_000
	// retryInstall is how often a policy is tried to be installed while Redis is away.
	retryInstall = 500 * time.Millisecond
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
	case !g.health(nil).Allow():
		return nil, fmt.Errorf("dependency %.64q: %w", name, bucket.ErrUnavailable)
	}
	p, err := g.policies.Load(ctx, name)
	if errors.Is(err, ErrUnknownDependency) {
		g.health(nil).Report(nil)
		g.mu.Lock()
		if len(g.missing) >= maxMissing {
			clear(g.missing)
		}
		g.missing[name] = g.now().Add(believeMissing)
		g.mu.Unlock()
		return nil, err
	}
	g.health(nil).Report(err)
	if err != nil {
		return nil, err
	}
	return g.add(name, p), nil
}

// add registers a dependency with its first policy, or returns the entry that another call registered meanwhile.
func (g *Gate) add(name string, p *Policy) *entry {
	g.mu.Lock()
	e := g.entries[name]
	if e == nil {
		e = &entry{name: name, limiter: g.store.Limiter(name)}
		e.policy.Store(p)
		g.entries[name] = e
		delete(g.missing, name)
	}
	g.mu.Unlock()
	g.adopt(e, p)
	g.metrics.StoreMode(name, g.mode(e.policy.Load()))
	return e
}

// adopt makes the policy the one that asks are compiled from, unless a later one is.
func (g *Gate) adopt(e *entry, p *Policy) {
	for {
		old := e.policy.Load()
		if old != nil && old != p && old.version >= p.version {
			return
		}
		if e.policy.CompareAndSwap(old, p) {
			break
		}
	}
	g.inForce(e, p)
}

// replace is adopt whatever was known before.
func (g *Gate) replace(e *entry, p *Policy) {
	e.policy.Store(p)
	g.inForce(e, p)
}

func (g *Gate) inForce(e *entry, p *Policy) {
	if p.version > 0 {
		e.decided.Store(true)
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
	var entries, later []*entry
	var first error
	for name, p := range compiled {
		g.mu.RLock()
		e := g.entries[name]
		g.mu.RUnlock()
		if e == nil {
			e = g.add(name, p)
		}
		d := p.Document()
		e.mu.Lock()
		e.file = &d
		e.installed.Store(false)
		e.mu.Unlock()
		entries = append(entries, e)
	}
	for _, e := range entries {
		if len(later) > 0 { // one wait for a store that is away is enough
			later = append(later, e)
			continue
		}
		e.mu.Lock()
		err := g.install(ctx, e)
		e.mu.Unlock()
		switch {
		case err == nil:
		case errors.Is(err, bucket.ErrUnavailable):
			later = append(later, e)
		case first == nil:
			first = err
		}
	}
	if len(later) > 0 {
		g.log.WarnContext(ctx, "the store is away; policies are installed when it is back", slog.Int("policies", len(later)))
		g.background.Go(func() { g.installLater(later) })
	}
	return first
}

// installLater tries until every entry's policy is installed.
func (g *Gate) installLater(entries []*entry) {
	tick := time.NewTicker(retryInstall)
	defer tick.Stop()
	for len(entries) > 0 {
		select {
		case <-g.running.Done():
			return
		case <-tick.C:
		}
		entries = slices.DeleteFunc(entries, func(e *entry) bool {
			e.mu.Lock()
			defer e.mu.Unlock()
			if e.installed.Load() {
				return true
			}
			err := g.install(g.running, e)
			if err != nil && !errors.Is(err, bucket.ErrUnavailable) {
				g.log.ErrorContext(g.running, "policy not installed", slog.String("dependency", e.name), slog.Any("error", err))
			}
			return err == nil
		})
	}
	g.log.InfoContext(g.running, "policies installed")
}

// install puts the file's policy into Redis; e.mu is held.
func (g *Gate) install(ctx context.Context, e *entry) error {
	e.installed.Store(false)
	version, changed, err := g.policies.Install(ctx, e.name, *e.file, e.decided.Load())
	if err != nil {
		return err
	}
	p, err := Compile(e.name, version, *e.file)
	if err != nil {
		return err
	}
	e.installed.Store(true)
	g.adopt(e, p)
	if changed {
		g.log.InfoContext(ctx, "policy in force", slog.String("dependency", e.name), slog.Int64("version", version))
	}
	return nil
}

// follow brings the entry to the policy that Redis holds after an ask found that it is not old: another version, or none.
func (g *Gate) follow(ctx context.Context, e *entry, old *Policy, cause error) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.policy.Load() != old {
		return nil // another ask was here before
	}
	if e.file != nil && !e.installed.Load() {
		return g.install(ctx, e)
	}
	if errors.Is(cause, bucket.ErrNoPolicy) {
		return g.restore(ctx, e, old)
	}
	p, err := g.policies.Load(ctx, e.name)
	if errors.Is(err, ErrUnknownDependency) {
		return g.restore(ctx, e, old)
	}
	if err != nil {
		return err
	}
	// Redis may have come back older than what this process knows. Its number counts, since it is what the scripts see.
	g.replace(e, p)
	g.log.InfoContext(ctx, "policy followed", slog.String("dependency", e.name), slog.Int64("version", p.version))
	return nil
}
