package admission

import (
	"context"
	"encoding/json"
	"log/slog"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluicehq/sluice/internal/redistest"
)

// TestGateLocks: whatever takes the gate's lock and an entry's at the same time does not wait for itself.
func TestGateLocks(t *testing.T) {
	t.Parallel()
	g := NewGate(GateConfig{Client: redistest.Start(t).Client(t), Logger: slog.New(slog.DiscardHandler)})
	defer g.Close()
	var d DependencyDocument
	require.NoError(t, json.Unmarshal([]byte(`{"limits":[{"name":"rate","kind":"token_bucket","capacity":10,"refill":"1/s"}]}`), &d))
	require.NoError(t, g.Apply(t.Context(), &Document{Dependencies: map[string]DependencyDocument{"d": d}}))
	e := g.entries["d"]
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		var wg sync.WaitGroup
		for i, f := range []func(i int){
			func(int) { _ = g.follow(ctx, e, e.policy.Load(), g.now().Add(time.Microsecond)) },
			func(int) { g.installPending() },
			func(int) { g.setFull(!g.full.Load()) },
			func(i int) { _, _ = g.Admit(ctx, "unknown"+strconv.Itoa(i), Ask{}) },
			func(int) { _ = g.Ready(ctx) },
		} {
			wg.Go(func() {
				for n, began := 0, time.Now(); time.Since(began) < time.Second; n++ {
					f(i*1_000_000 + n)
				}
			})
		}
		wg.Wait()
	}()
	select {
	case <-done:
	case <-time.After(60 * time.Second):
		require.Fail(t, "deadlock")
	}
	cancel()
}
