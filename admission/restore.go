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
	// lookAround is how often the gate sees to what nobody asks for: a store that is away, policies that are not installed.
	lookAround = 500 * time.Millisecond
	// lookForLost is how often Redis is asked whether it was emptied, so that policies come back that nobody asks for.
	lookForLost = time.Second
	// lookAtAll is how often each policy is looked for; one that is lost alone also comes back with its next ask.
	lookAtAll = time.Minute
)

// tend sees to what nobody asks for, until the gate is closed.
func (g *Gate) tend() {
	tick := time.NewTicker(lookAround)
	defer tick.Stop()
	looked, lookedAtAll := g.now(), g.now()
	for {
		select {
		case <-g.running.Done():
			return
		case <-tick.C:
		}
		if g.healths.troubled() {
			g.probe()
			continue
		}
		g.installPending()
		if g.now().Sub(looked) < lookForLost {
			continue
		}
		looked = g.now()
		all := g.now().Sub(lookedAtAll) >= lookAtAll
		if all {
			lookedAtAll = g.now()
		}
		g.restoreLost(all)
	}
}

// restoreLost brings back policies that Redis lost. It ends with the first that finds the store away.
func (g *Gate) restoreLost(all bool) {
	gone, err := g.lost(g.running, all)
	for _, e := range gone {
		err = g.follow(g.running, e, e.policy.Load(), time.Time{})
		if errors.Is(err, bucket.ErrUnavailable) {
			break
		}
		if err != nil {
			g.log.ErrorContext(g.running, "policy not restored", slog.String("dependency", e.name), slog.Any("error", err))
		}
	}
	g.healths.of(nil).Report(bucket.Pass{}, err)
}

// lost lists the entries whose policy Redis does not have any more, or only an earlier one. Unless all, it looks no closer
// while the set of names is as large as what this process knows, which is one command however many there are.
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
	documents, versions := make([]*redis.IntCmd, len(entries)), make([]*redis.StringCmd, len(entries))
	for i, e := range entries {
		documents[i] = pipe.Exists(ctx, policyKeys(e.name)[0])
		versions[i] = pipe.HGet(ctx, bucket.MetaKey(e.name), "v")
	}
	if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
		return nil, unavailable(ctx, "look for policies", err)
	}
	var gone []*entry
	for i, e := range entries {
		version, err := versions[i].Int64()
		if err != nil || version < e.policy.Load().version || documents[i].Val() == 0 {
			gone = append(gone, e)
		}
	}
	return gone, nil
}
