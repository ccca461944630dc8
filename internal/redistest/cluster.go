//go:build unix

package redistest

import (
	"context"
	"fmt"
	"strconv"
	"testing"

	"github.com/redis/go-redis/v9"
)

const (
	clusterNodes = 3
	clusterSlots = 16384
)

// Cluster starts a real cluster of three masters without replicas and returns
// a client of it, closed in tb's Cleanup. Forming one takes about two seconds,
// for which Redis keeps new masters waiting, so tests share it through
// subtests.
func Cluster(tb testing.TB, mutate ...func(*redis.ClusterOptions)) *redis.ClusterClient {
	tb.Helper()
	options := &redis.ClusterOptions{}
	for _, node := range ClusterNodes(tb) {
		options.Addrs = append(options.Addrs, node.Addr())
	}
	for _, m := range mutate {
		m(options)
	}
	client := redis.NewClusterClient(options)
	tb.Cleanup(func() { _ = client.Close() }) // a test may have closed it
	return client
}

// ClusterNodes starts what [Cluster] does and returns its nodes, for tests that
// stop or kill one, or move slots. Another node for the cluster is
// Start(tb, "--cluster-enabled", "yes") and a CLUSTER MEET.
func ClusterNodes(tb testing.TB) []*Server {
	tb.Helper()
	nodes := make([]*Server, clusterNodes)
	clients := make([]*redis.Client, clusterNodes)
	for i := range nodes {
		nodes[i] = Start(
			tb,
			"--cluster-enabled", "yes",
			"--cluster-node-timeout", "2000",
		)
		clients[i] = nodes[i].Client(tb)
	}
	ctx := tb.Context()
	for i, client := range clients {
		first, end := i*clusterSlots/clusterNodes, (i+1)*clusterSlots/clusterNodes
		// Distinct epochs from the start save the nodes from settling them.
		if err := client.Do(ctx, "CLUSTER", "SET-CONFIG-EPOCH", i+1).Err(); err != nil {
			tb.Fatalf("redistest: cluster: epoch of node %d: %v", i, err)
		}
		if err := client.Do(ctx, "CLUSTER", "ADDSLOTSRANGE", first, end-1).Err(); err != nil {
			tb.Fatalf("redistest: cluster: slots of node %d: %v", i, err)
		}
		if i == 0 {
			continue
		}
		if err := clients[0].Do(ctx, "CLUSTER", "MEET", loopback, nodes[i].port, nodes[i].busPort).Err(); err != nil {
			tb.Fatalf("redistest: cluster: meet node %d: %v", i, err)
		}
	}
	for i, client := range clients {
		err := eventually(func() (bool, error) { return joined(ctx, client) })
		if err != nil {
			tb.Fatalf("redistest: cluster: node %d: %v", i, err)
		}
	}
	return nodes
}

// joined says whether a node sees the whole cluster and serves.
func joined(ctx context.Context, client *redis.Client) (bool, error) {
	info, err := client.ClusterInfo(ctx).Result()
	if err != nil {
		return false, err
	}
	for name, want := range map[string]string{
		"cluster_state":       "ok",
		"cluster_slots_ok":    strconv.Itoa(clusterSlots),
		"cluster_known_nodes": strconv.Itoa(clusterNodes),
		"cluster_size":        strconv.Itoa(clusterNodes),
	} {
		if got := infoField(info, name); got != want {
			return false, fmt.Errorf("%s is %q, not %q", name, got, want)
		}
	}
	return true, nil
}
