//go:build unix

package bucket

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/sluicehq/sluice/internal/redistest"
)

// ring is a cluster with a client of it and one of each node.
type ring struct {
	client *redis.ClusterClient
	nodes  []*redis.Client
	ids    []string
}

func newRing(t *testing.T) *ring {
	t.Helper()
	r := &ring{}
	options := &redis.ClusterOptions{}
	for _, n := range redistest.ClusterNodes(t) {
		options.Addrs = append(options.Addrs, n.Addr())
		c := n.Client(t)
		id, err := c.Do(t.Context(), "CLUSTER", "MYID").Text()
		require.NoError(t, err)
		r.nodes, r.ids = append(r.nodes, c), append(r.ids, id)
	}
	r.client = redis.NewClusterClient(options)
	t.Cleanup(func() { _ = r.client.Close() })
	return r
}

// owner is the index of the node that holds the dependency.
func (r *ring) owner(t *testing.T, name string) int {
	t.Helper()
	n, err := r.client.MasterForKey(t.Context(), MetaKey(name))
	require.NoError(t, err)
	id, err := n.Do(t.Context(), "CLUSTER", "MYID").Text()
	require.NoError(t, err)
	for i := range r.ids {
		if r.ids[i] == id {
			return i
		}
	}
	require.Fail(t, "no such node")
	return -1
}

// TestDecideOnACluster: a dependency's state lies on one slot, whichever node has it and while it moves.
func TestDecideOnACluster(t *testing.T) {
	t.Parallel()
	r := newRing(t)
	t.Run("agrees with the model", func(t *testing.T) {
		t.Parallel()
		name, runs := redistest.Name(t), 0
		rapid.Check(t, func(rt *rapid.T) {
			if runs++; runs <= 25 {
				modelAgrees(rt, r.client, name+"-"+strconv.Itoa(runs))
			}
		})
	})
	t.Run("dependencies on all nodes", func(t *testing.T) {
		t.Parallel()
		used := map[int]bool{}
		var worlds []*world
		name := redistest.Name(t)
		for i := 0; i < 40 && (len(worlds) < 6 || len(used) < len(r.nodes)); i++ {
			concurrency := &Limit{Name: "c", Kind: Concurrency, Per: PerTenant, Size: 2, Hold: time.Minute}
			w := newWorld(t, r.client, name+strconv.Itoa(i), tokenLimit(5, "1/s"), concurrency)
			defer w.close()
			worlds, used[r.owner(t, w.name)] = append(worlds, w), true
		}
		require.Len(t, used, len(r.nodes))
		for i := range worlds {
			for j := range 7 { // no dependency's counts are another's
				require.Equal(t, j < 5, worlds[i].of("t"+strconv.Itoa(j)).Outcome == Admitted)
			}
		}
	})
	t.Run("a slot moves", func(t *testing.T) {
		t.Parallel()
		r.moveWhileDeciding(t, false)
		r.moveWhileDeciding(t, true)
	})
	t.Run("a slot stays half moved", func(t *testing.T) {
		t.Parallel()
		r.decideHalfMoved(t, "")
		r.decideHalfMoved(t, "key")
		r.decideHalfMoved(t, "", &Limit{Name: "c", Kind: Concurrency, Per: PerDependency, Size: 2, Hold: time.Hour})
	})
}

// settle puts a dependency onto the cluster, by the shipped clock: the test's reads a key that the script does not declare.
func (r *ring) settle(t *testing.T, limits ...*Limit) (*Limiter, string, *Set) {
	t.Helper()
	name, fields := redistest.Name(t), []any{"v", 1}
	for _, l := range limits {
		fields = append(fields, "b:"+l.Identity(), fmt.Sprintf("%d %d", epoch-86_400_000_000_000, l.Size))
	}
	require.NoError(t, r.client.HSet(context.Background(), MetaKey(name), fields...).Err())
	require.NoError(t, r.client.HSet(context.Background(), StateKey(name), "installed", 1).Err())
	limiter := NewStore(r.client, StoreOptions{}).Limiter(name)
	t.Cleanup(limiter.Close)
	return limiter, name, NewSet(1, limits, "default")
}

// decideHalfMoved asks in each state that a moving slot can be in: what is asked for is refused as long as the keys lie on
// both sides, within a bounded time, or decided by all that there is.
func (r *ring) decideHalfMoved(t *testing.T, key string, more ...*Limit) {
	const capacity = 5
	ctx := context.Background()
	limiter, name, set := r.settle(t, append([]*Limit{tokenLimit(capacity, "1/d")}, more...)...)
	admitted := 0
	ask := func() (err error) {
		a := Ask{Set: set, ID: "adm_" + strconv.Itoa(admitted), Key: key, Fingerprint: "f", KeyTTL: time.Minute}
		ans, err := limiter.Do(ctx, a, 0)
		if err == nil && ans.Outcome == Admitted && !ans.Replayed {
			admitted++
		}
		return err
	}
	require.NoError(t, ask())
	from, states := r.owner(t, name), 0
	to := (from + 1) % len(r.nodes)
	r.moveSlot(t, name, from, to, func() {
		states++
		if err := ask(); err != nil {
			require.ErrorIs(t, err, ErrNotRun)
		}
	})
	require.GreaterOrEqual(t, states, 2)
	for range 2 * capacity {
		require.NoError(t, ask())
	}
	want := capacity
	if key != "" {
		want = 1
	} else if len(more) > 0 {
		want = int(more[0].Size)
	}
	require.Equal(t, want, admitted)
}

// moveWhileDeciding moves the slot of a dependency from node to node while callers ask, and looks that exactly as many
// tokens are gone as callers were told.
func (r *ring) moveWhileDeciding(t *testing.T, keyed bool) {
	const capacity = 100_000
	ctx := context.Background()
	limiter, name, set := r.settle(t, tokenLimit(capacity, "1/d"))
	_, err := limiter.Do(ctx, Ask{Set: set}, 0)
	require.NoError(t, err)

	var admitted, failed, replayed atomic.Int64
	admitted.Add(1)
	var stop atomic.Bool
	var wg sync.WaitGroup
	var odd sync.Map
	for caller := range 8 {
		wg.Go(func() {
			for i := 0; !stop.Load(); i++ {
				a := Ask{Set: set, ID: fmt.Sprintf("adm_%d_%d", caller, i)}
				if keyed {
					a.Key, a.Fingerprint, a.KeyTTL = fmt.Sprintf("k%d_%d", caller, i), "f", time.Minute
				}
				for {
					ans, err := limiter.Do(ctx, a, 0)
					switch {
					case err == nil && ans.Replayed:
						replayed.Add(1)
					case err == nil && ans.Outcome == Admitted:
						admitted.Add(1)
					case errors.Is(err, ErrNotRun): // the slot is half here and half there for longer than is waited
						failed.Add(1)
						continue
					default:
						odd.Store(fmt.Sprint(ans.Outcome, " ", err), true)
					}
					break
				}
			}
		})
	}
	begin := r.owner(t, name)
	for hop := range 4 {
		r.moveSlot(t, name, (begin+hop)%len(r.nodes), (begin+hop+1)%len(r.nodes), func() {})
		was := admitted.Load()
		require.Eventually(t, func() bool { return admitted.Load() > was+20 }, time.Minute, time.Millisecond,
			"keyed %v, hop %d: nobody is served after the slot moved; %d were not run", keyed, hop, failed.Load())
	}
	stop.Store(true)
	wg.Wait()
	odd.Range(func(k, _ any) bool { t.Errorf("keyed %v: %v", keyed, k); return true })
	ans, err := limiter.Do(ctx, Ask{Set: set, Verb: View}, 0)
	require.NoError(t, err)
	require.Equal(t, admitted.Load(), capacity-ans.Limits[0].Remaining, "keyed %v: taken and told", keyed)
	require.Zero(t, replayed.Load(), "keyed %v: what failed was not run", keyed)
	t.Logf("keyed %v: %d admitted, %d not run", keyed, admitted.Load(), failed.Load())
}

// moveSlot moves the slot as redis-cli does, key by key, and calls between after each key.
func (r *ring) moveSlot(t *testing.T, name string, from, to int, between func()) {
	t.Helper()
	ctx := t.Context()
	slot, err := r.nodes[from].ClusterKeySlot(ctx, MetaKey(name)).Result()
	require.NoError(t, err)
	set := func(node int, args ...any) {
		require.NoError(t, r.nodes[node].Do(ctx, append([]any{"CLUSTER", "SETSLOT", slot}, args...)...).Err())
	}
	set(to, "IMPORTING", r.ids[from])
	set(from, "MIGRATING", r.ids[to])
	host, port, err := net.SplitHostPort(r.nodes[to].Options().Addr)
	require.NoError(t, err)
	for {
		keys, err := r.nodes[from].ClusterGetKeysInSlot(ctx, int(slot), 10).Result()
		require.NoError(t, err)
		if len(keys) == 0 {
			break
		}
		for _, k := range keys {
			require.NoError(t, r.nodes[from].Migrate(ctx, host, port, k, 0, 10*time.Second).Err(), k)
			between()
		}
	}
	r.assign(t, slot, to)
}

// assign makes a node the owner of the slot and waits until all nodes say so. A node that has not yet heard of the epoch in
// which another took over would take a lower one itself, and lose the slot again to a claim of then that comes late.
func (r *ring) assign(t *testing.T, slot int64, to int) {
	t.Helper()
	order := []int{to} // as long as it knows itself as the importer, it takes a new epoch
	for i := range r.nodes {
		if i != to {
			order = append(order, i)
		}
	}
	tried := time.Time{}
	require.Eventually(t, func() bool {
		if now := time.Now(); now.Sub(tried) > 2*time.Second {
			if !tried.IsZero() {
				_ = r.nodes[to].Do(t.Context(), "CLUSTER", "BUMPEPOCH").Err()
			}
			tried = now
			for _, i := range order {
				require.NoError(t, r.nodes[i].Do(t.Context(), "CLUSTER", "SETSLOT", slot, "NODE", r.ids[to]).Err())
			}
		}
		views := map[string]bool{}
		for i := range r.nodes {
			views[r.view(t, i, slot)] = true
		}
		return len(views) == 1 && strings.HasPrefix(slices.Collect(maps.Keys(views))[0], r.ids[to])
	}, 60*time.Second, 5*time.Millisecond, "the nodes do not agree on who has the slot")
}

// view is who has the slot as a node sees it, and the epochs in which it knows all nodes.
func (r *ring) view(t *testing.T, node int, slot int64) string {
	t.Helper()
	shards, err := r.nodes[node].ClusterShards(t.Context()).Result()
	require.NoError(t, err)
	owner := ""
	for _, shard := range shards {
		for _, s := range shard.Slots {
			if s.Start <= slot && slot <= s.End {
				owner = shard.Nodes[0].ID
			}
		}
	}
	lines, err := r.nodes[node].ClusterNodes(t.Context()).Result()
	require.NoError(t, err)
	var epochs []string
	for line := range strings.Lines(lines) {
		if f := strings.Fields(line); len(f) > 6 {
			epochs = append(epochs, f[0]+"="+f[6])
		}
	}
	slices.Sort(epochs)
	return owner + " " + strings.Join(epochs, " ")
}
