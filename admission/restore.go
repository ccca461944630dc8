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
	// lookAround is how often a store that is away is tried by a write, so that it is found to be back without asks.
	lookAround = 500 * time.Millisecond
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
		keys := policyKeys(e.name)
		found[i] = pipe.Exists(ctx, keys[0], keys[1])
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, unavailable(ctx, "look for policies", err)
	}
	var gone []*entry
	for i, e := range entries {
		if found[i].Val() < 2 {
			gone = append(gone, e)
		}
	}
	return gone, nil
}

// restoreLost brings back what Redis lost although nobody asks for it. While the store is degraded it keeps still.
func (g *Gate) restoreLost() {
	tick := time.NewTicker(lookAround)
	defer tick.Stop()
	last, looked := g.now(), g.now()
	for {
		select {
		case <-g.running.Done():
			return
		case <-tick.C:
		}
		if g.probe() || g.now().Sub(looked) < lookForLost {
			continue
		}
		looked = g.now()
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

// probeKey is written to find out whether the store takes writes again; what only reads would also succeed where Redis is
// full or a replica.
const probeKey = "sluice:probe"

// probe tries the store for each timeout under which it is degraded; it reports whether there is any.
func (g *Gate) probe() bool {
	degraded := false
	g.healths.Range(func(timeout, health any) bool {
		h := health.(*bucket.Health) //nolint:forcetypeassert // nothing else is stored
		degraded = degraded || h.Degraded()
		if !h.Degraded() || !h.Allow() {
			return true
		}
		begin := g.now()
		err := g.client.Set(g.running, probeKey, "1", time.Minute).Err()
		if err != nil {
			err = unavailable(g.running, "probe", err)
		} else if within := timeout.(time.Duration); within > 0 && g.now().Sub(begin) > within { //nolint:forcetypeassert // as above
			err = bucket.ErrTimeout
		}
		h.Report(err)
		return true
	})
	return degraded
}
