package admission

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluicehq/sluice/bucket"
)

const (
	// lookForLost is how often Redis is asked whether it was emptied, so that policies come back that nobody asks for.
	lookForLost = time.Second
	// lookAtAll is how often each policy is looked for; one that is lost alone also comes back with its next ask.
	lookAtAll = time.Minute
)

// restore installs what the dependency was last decided by, because Redis lost it. Its buckets start empty.
func (g *Gate) restore(ctx context.Context, e *entry, old *Policy) error {
	version, changed, err := g.policies.Install(ctx, e.name, old.Document(), e.decided.Load())
	if err != nil {
		return err
	}
	p, err := Compile(e.name, version, old.Document())
	if err != nil {
		return err
	}
	g.replace(e, p)
	if changed {
		g.metrics.Repaired("policy", 1)
		g.log.WarnContext(ctx, "Redis had lost the policy; it is back, with empty buckets",
			slog.String("dependency", e.name), slog.Int64("version", version))
	}
	return nil
}

// lost lists the entries whose policy Redis does not have any more. Unless all, it looks no closer while the set of names is
// as large as what this process knows, which is one command however many there are.
func (g *Gate) lost(ctx context.Context, all bool) ([]*entry, error) {
	g.mu.RLock()
	entries := make([]*entry, 0, len(g.entries))
	for _, e := range g.entries {
		if e.policy.Load().version > 0 {
			entries = append(entries, e)
		}
	}
	g.mu.RUnlock()
	if len(entries) == 0 {
		return nil, nil
	}
	known, err := g.client.SCard(ctx, namesKey).Result()
	if err != nil {
		return nil, unavailable(ctx, "count dependencies", err)
	}
	if !all && known >= int64(len(entries)) {
		return nil, nil
	}
	pipe := g.client.Pipeline()
	found := make([]*redis.IntCmd, len(entries))
	for i, e := range entries {
		found[i] = pipe.Exists(ctx, bucket.MetaKey(e.name))
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, unavailable(ctx, "look for policies", err)
	}
	var gone []*entry
	for i, e := range entries {
		if found[i].Val() == 0 {
			gone = append(gone, e)
		}
	}
	return gone, nil
}

// restoreLost brings back what Redis lost although nobody asks for it. While the store is degraded it keeps still.
func (g *Gate) restoreLost() {
	tick := time.NewTicker(lookForLost)
	defer tick.Stop()
	last := g.now()
	for {
		select {
		case <-g.running.Done():
			return
		case <-tick.C:
		}
		if g.health.Degraded() {
			continue
		}
		all := g.now().Sub(last) >= lookAtAll
		if all {
			last = g.now()
		}
		gone, err := g.lost(g.running, all)
		if err != nil {
			continue
		}
		for _, e := range gone {
			err := g.follow(g.running, e, e.policy.Load(), bucket.ErrNoPolicy)
			if err != nil && !errors.Is(err, bucket.ErrUnavailable) {
				g.log.ErrorContext(g.running, "policy not restored", slog.String("dependency", e.name), slog.Any("error", err))
			}
		}
	}
}
