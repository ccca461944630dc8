package admission_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluicehq/sluice/admission"
	"github.com/sluicehq/sluice/bucket"
	"github.com/sluicehq/sluice/internal/redistest"
)

// outcomes are the reasons of a batch's decisions, "" of those admitted.
func (g *gate) outcomes(asks []admission.Ask, together bool) []admission.Reason {
	g.t.Helper()
	ds, err := g.AdmitBatch(g.t.Context(), g.name, asks, together)
	require.NoError(g.t, err)
	require.Len(g.t, ds, len(asks))
	reasons := make([]admission.Reason, len(ds))
	for i, d := range ds {
		reasons[i] = d.Reason
		require.Equal(g.t, d.Reason == admission.ReasonNone, d.Outcome == admission.OutcomeAdmitted)
		require.Equal(g.t, admission.SourceRedis, d.Source)
	}
	return reasons
}

func costing(n int64) admission.Ask {
	return admission.Ask{Costs: map[string]int64{bucket.Requests: n}}
}

// TestGateBatches: each item on its own, in order, or all together; an item that never fits refuses itself alone, or all
// with it.
func TestGateBatches(t *testing.T) {
	t.Parallel()
	const (
		yes   = admission.ReasonNone
		limit = admission.ReasonLimit
		never = admission.ReasonCostExceeds
		other = admission.ReasonBatch
	)
	for name, row := range map[string]struct {
		costs    []int64
		together bool
		want     []admission.Reason
		left     int64
	}{
		"each fits":                     {[]int64{1, 2, 3}, false, []admission.Reason{yes, yes, yes}, 4},
		"each until it is empty":        {[]int64{6, 6, 4, 1}, false, []admission.Reason{yes, limit, yes, limit}, 0},
		"each, one never":               {[]int64{1, 11, 2}, false, []admission.Reason{yes, never, yes}, 7},
		"each never":                    {[]int64{11, 12}, false, []admission.Reason{never, never}, 10},
		"together":                      {[]int64{1, 2, 3}, true, []admission.Reason{yes, yes, yes}, 4},
		"together never, one by one":    {[]int64{6, 6, 1}, true, []admission.Reason{other, never, other}, 10},
		"together, one never":           {[]int64{1, 11, 2}, true, []admission.Reason{other, never, other}, 10},
		"together, several never":       {[]int64{11, 1, 12}, true, []admission.Reason{never, other, never}, 10},
		"together, free items included": {[]int64{0, 0, 10}, true, []admission.Reason{yes, yes, yes}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGate(t, redistest.Shared(t), redistest.Name(t), `{"store": {"timeout": "10s"},
			  "limits": [{"name": "rate", "kind": "token_bucket", "capacity": 10, "refill": "1/h"}]}`)
			var asks []admission.Ask
			for _, c := range row.costs {
				asks = append(asks, costing(c))
			}
			require.Equal(t, row.want, g.outcomes(asks, row.together))
			require.Equal(t, row.left, g.left()["rate"])
		})
	}
}

// TestGateBatchTogetherRefused: what is refused together now is told when it fits, by the limit that holds it back, and
// nothing of it was taken from any limit.
func TestGateBatchTogetherRefused(t *testing.T) {
	t.Parallel()
	g := newGate(t, redistest.Shared(t), redistest.Name(t), twoUnits)
	g.must(costing(6))
	before := g.left()
	ds, err := g.AdmitBatch(t.Context(), g.name, []admission.Ask{{Tenant: "a"}, costing(3), costing(1), {Class: "bulk"}}, true)
	require.NoError(t, err)
	refused := 0
	for _, d := range ds {
		require.Equal(t, admission.OutcomeRejected, d.Outcome)
		if d.Reason == admission.ReasonBatch {
			continue
		}
		refused++
		require.Equal(t, admission.ReasonLimit, d.Reason)
		require.Equal(t, "rate", d.BlockedBy)
		require.Greater(t, d.Available, time.Hour, "two tokens are missing")
	}
	require.Equal(t, 1, refused)
	require.Equal(t, before, g.left())
}

// TestGateBatchSizes: 1 to 1,000 each on their own, 1 to 64 together, and dry runs only among themselves there.
func TestGateBatchSizes(t *testing.T) {
	t.Parallel()
	g := newGate(t, redistest.Shared(t), redistest.Name(t), `{"store": {"timeout": "10s"},
	  "limits": [{"name": "rate", "kind": "token_bucket", "capacity": 2000, "refill": "1/h"}]}`)
	for _, row := range []struct {
		n        int
		together bool
		ok       bool
	}{{0, false, false}, {1, false, true}, {1000, false, true}, {1001, false, false}, {0, true, false}, {64, true, true}, {65, true, false}} {
		before := g.left()["rate"]
		_, err := g.AdmitBatch(t.Context(), g.name, make([]admission.Ask, row.n), row.together)
		if row.ok {
			require.NoError(t, err)
			require.Equal(t, before-int64(row.n), g.left()["rate"])
			continue
		}
		var wrong *admission.FieldError
		require.ErrorAs(t, err, &wrong)
		require.Equal(t, "items", wrong.Field)
		require.Equal(t, before, g.left()["rate"])
	}
	before := g.left()["rate"]
	dry := admission.Ask{DryRun: true}
	require.Equal(t, []admission.Reason{"", ""}, g.outcomes([]admission.Ask{dry, dry}, true))
	require.Equal(t, before, g.left()["rate"])
	require.Equal(t, []admission.Reason{"", ""}, g.outcomes([]admission.Ask{dry, {}}, false))
	require.Equal(t, before-1, g.left()["rate"])
	var wrong *admission.FieldError
	_, err := g.AdmitBatch(t.Context(), g.name, []admission.Ask{dry, {}}, true)
	require.ErrorAs(t, err, &wrong)
	require.Equal(t, "items[1].dry_run", wrong.Field)
	require.Equal(t, before-1, g.left()["rate"])
}

// TestGateSettlesWhatWasNotEstimated: a unit that the estimate put at nothing is booked when it is settled, on every kind.
func TestGateSettlesWhatWasNotEstimated(t *testing.T) {
	t.Parallel()
	for kind, limit := range map[string]string{
		"bucket": `"kind": "token_bucket", "capacity": 1000, "refill": "1/d"`,
		"quota":  `"kind": "quota", "limit": 1000, "every": "month"`,
		"window": `"kind": "sliding_window", "limit": 1000, "window": "24h"`,
		"log":    `"kind": "sliding_log", "limit": 1000, "window": "24h"`,
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			g := newGate(t, redistest.Shared(t), redistest.Name(t), `{"store": {"timeout": "10s"}, "limits": [
			  {"name": "rate", "kind": "token_bucket", "capacity": 10, "refill": "1/d"},
			  {"name": "points", "unit": "points", `+limit+`}]}`)
			for _, row := range []struct {
				estimate, real map[string]int64
				left           map[string]int64
			}{
				{nil, map[string]int64{"points": 400}, map[string]int64{"rate": 9, "points": 600}},
				{nil, map[string]int64{"requests": 1}, map[string]int64{"rate": 8, "points": 600}},
				{map[string]int64{"requests": 0, "points": 1}, map[string]int64{"requests": 3, "points": 0}, map[string]int64{"rate": 5, "points": 600}},
				// However much it really was, a log keeps no more of it than fill it.
				{nil, map[string]int64{"points": 1 << 40}, map[string]int64{"rate": 4, "points": 0}},
			} {
				d := g.must(admission.Ask{Costs: row.estimate, SettleLater: true})
				_, err := g.Grant(t.Context(), g.name, d.ID, admission.GrantOp{Verb: admission.GrantSettle, Costs: row.real})
				require.NoError(t, err)
				require.Equal(t, row.left, g.left())
			}
			key := "sluice:{" + g.name + "}:s/ld:points:points"
			require.LessOrEqual(t, g.client.ZCard(t.Context(), key).Val(), int64(1400))
		})
	}
}

// TestGateKeysOfLargeBuckets: what is left of a bucket is told to the last token, however large it is.
func TestGateKeysOfLargeBuckets(t *testing.T) {
	t.Parallel()
	const capacity = 4_000_000_000_000_123
	g := newGate(t, redistest.Shared(t), redistest.Name(t), `{"store": {"timeout": "10s"}, "limits": [
	  {"name": "rate", "kind": "token_bucket", "capacity": 4000000000000123, "refill": "1000000/s"}]}`)
	for i := range int64(2) {
		d := g.must(admission.Ask{IdempotencyKey: "k"})
		require.Equal(t, i == 1, d.Replayed)
		require.Equal(t, int64(capacity-1), d.Limits[0].Remaining)
	}
}

// TestGateKeyOutlivesALowerLimit: an ask was admitted, and then a limit was lowered below its cost. Who asks again by its key
// is told of the admission; who never was admitted is told that it never fits, Redis or no Redis.
func TestGateKeyOutlivesALowerLimit(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	g := newGate(t, server.Client(t), "d", hourly(100, `"timeout": "300ms", "on_failure": "open"`))
	ask := admission.Ask{Costs: map[string]int64{"requests": 60}, IdempotencyKey: "k"}
	var first admission.Decision
	require.Eventually(t, func() bool { first = g.must(ask); return first.Source == admission.SourceRedis }, 30*time.Second, time.Millisecond)
	g.apply(hourly(50, `"timeout": "300ms", "on_failure": "open"`))
	other := ask
	other.IdempotencyKey = "other"
	both := func() []admission.Decision {
		ds, err := g.AdmitBatch(t.Context(), "d", []admission.Ask{ask, other}, false)
		require.NoError(t, err)
		return append(ds, g.ask(ask), g.ask(other))
	}
	require.Eventually(t, func() bool { return both()[0].Source == admission.SourceRedis }, 30*time.Second, time.Millisecond)
	for i, d := range both() {
		if i%2 == 0 {
			require.True(t, d.Replayed)
			require.Equal(t, first.ID, d.ID)
		} else {
			require.Equal(t, admission.ReasonCostExceeds, d.Reason)
		}
	}
	server.Stop()
	for range 4 {
		for _, d := range both() {
			require.Equal(t, admission.ReasonCostExceeds, d.Reason)
		}
	}
	server.Cont()
}
