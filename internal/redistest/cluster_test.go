//go:build unix

package redistest_test

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluicehq/sluice/internal/redistest"
)

func TestCluster(t *testing.T) {
	t.Parallel()
	client := redistest.Cluster(t)
	ctx := t.Context()
	for i := range 100 {
		key := "k" + strconv.Itoa(i)
		require.NoError(t, client.Set(ctx, key, i, 0).Err())
		require.Equal(t, strconv.Itoa(i), client.Get(ctx, key).Val())
	}
	var mu sync.Mutex
	sizes := map[string]int64{}
	require.NoError(t, client.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		sizes[node.Options().Addr] = node.DBSize(ctx).Val()
		return nil
	}))
	require.Len(t, sizes, 3)
	for addr, size := range sizes {
		require.Positive(t, size, addr)
	}
	err := client.Eval(ctx, "return 1", []string{"{a}k", "{b}k"}).Err()
	require.ErrorContains(t, err, "CROSSSLOT")
}

func TestClusterNodes(t *testing.T) {
	t.Parallel()
	nodes := redistest.ClusterNodes(t)
	require.Len(t, nodes, 3)
	client := nodes[0].Client(t)
	nodes[2].Kill()
	require.Eventually(t, func() bool {
		err := client.Set(t.Context(), "{k}", 1, 0).Err() // its slot is of another node, or down
		return err != nil && redis.HasErrorPrefix(err, "CLUSTERDOWN")
	}, 30*time.Second, 20*time.Millisecond)
	nodes[2].Restart(t)
	require.Eventually(t, func() bool {
		return clusterState(t, client) == "ok"
	}, 30*time.Second, 20*time.Millisecond)
}

func clusterState(t *testing.T, client *redis.Client) string {
	t.Helper()
	info := client.ClusterInfo(t.Context()).Val()
	_, after, _ := strings.Cut(info, "cluster_state:")
	state, _, _ := strings.Cut(after, "\r\n")
	return state
}
