package admission

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluicehq/sluice/bucket"
)

const (
	// lookAround is how often the gate sees to what nobody asks for: a store that is away, policies that are not installed.
	lookAround = 500 * time.Millisecond
	// lookForLost is how often Redis is asked whether it still has in force what this process decides by, so that what was
	// lost comes back, and what was changed is followed, although nobody asks.
	lookForLost = time.Second
	// lookAtMost is of how many policies it is asked at once; the others' turn comes with the next times.
	lookAtMost = 1000
	// nameAgain is how often the names of all dependencies are put back into their set.
	nameAgain = time.Minute
)

// tend sees to what nobody asks for, until the gate is closed.
func (g *Gate) tend() {
	tick := time.NewTicker(lookAround)
	defer tick.Stop()
	looked, named, turn := g.now(), g.now(), 0
	for {
		select {
		case <-g.running.Done():
			return
		case <-tick.C:
		}
		if g.full.Load() || g.healths.troubled() {
			_ = g.probe(g.running) // what came of it is told to all
		}
		if !g.inTime() || g.healths.of(nil).Degraded() {
			continue
		}
		g.installPending()
		if g.now().Sub(looked) < lookForLost {
			continue
		}
		looked = g.now()
		entries := g.decided()
		if turn >= len(entries) {
			turn = 0
		}
		err := g.restoreLost(entries[turn:min(turn+lookAtMost, len(entries))])
		turn += lookAtMost
		if err == nil && g.now().Sub(named) >= nameAgain {
			named = g.now()
			err = g.putNames(entries)
		}
		if errors.Is(err, bucket.ErrUnavailable) {
			g.healths.of(nil).Report(err)
		} else if err != nil {
			g.log.ErrorContext(g.running, "policies not looked after", slog.Any("error", err))
		}
	}
}

// decided lists the dependencies whose policy was in force here, by name.
func (g *Gate) decided() []*entry {
	entries := slices.DeleteFunc(g.all(), func(e *entry) bool { return e.policy.Load().version == 0 })
	slices.SortFunc(entries, func(a, b *entry) int { return cmp.Compare(a.name, b.name) })
	return entries
}

// restoreLost brings those of the policies back that Redis lost, and follows those that were changed. It ends with the first
// that it cannot.
func (g *Gate) restoreLost(entries []*entry) error {
	gone, err := g.lost(g.running, entries, true)
	for _, e := range gone {
		if err := g.follow(g.running, e, e.policy.Load(), time.Time{}); err != nil {
			return fmt.Errorf("policy of %s: %w", e.name, err)
		}
	}
	if err == nil && len(gone) > 0 { // who was lost with them may be the names
		err = g.putNames(entries)
	}
	return err
}

// putNames puts the names of dependencies into their set.
func (g *Gate) putNames(entries []*entry) error {
	names := make([]any, len(entries))
	for i, e := range entries {
		names[i] = e.name
	}
	if len(names) == 0 {
		return nil
	}
	if err := g.client.SAdd(g.running, namesKey, names...).Err(); err != nil {
		return unavailable(g.running, "put back names", err)
	}
	return nil
}

// lost lists those of the entries of which Redis has no policy in force, or with changed another version than this process.
func (g *Gate) lost(ctx context.Context, entries []*entry, changed bool) (gone []*entry, err error) {
	if len(entries) == 0 {
		return nil, nil
	}
	pipe := g.client.Pipeline()
	documents, versions := make([]*redis.BoolCmd, len(entries)), make([]*redis.StringCmd, len(entries))
	for i, e := range entries {
		documents[i] = pipe.HExists(ctx, policyKeys(e.name)[0], strconv.FormatInt(e.policy.Load().version, 10))
		versions[i] = pipe.HGet(ctx, bucket.MetaKey(e.name), "v")
	}
	_, _ = pipe.Exec(ctx) // its error is the first command's; each is looked at below
	for i, e := range entries {
		version, err := versions[i].Int64()
		if err = cmp.Or(documents[i].Err(), err); err != nil && !errors.Is(err, redis.Nil) {
			return nil, unavailable(ctx, "look for policies", err)
		}
		if err != nil || changed && (version != e.policy.Load().version || !documents[i].Val()) {
			gone = append(gone, e)
		}
	}
	return gone, nil
}
