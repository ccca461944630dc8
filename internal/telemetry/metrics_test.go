package telemetry_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/common/expfmt"
	"github.com/stretchr/testify/require"

	"github.com/sluicehq/sluice/admission"
	"github.com/sluicehq/sluice/bucket"
	"github.com/sluicehq/sluice/internal/telemetry"
)

func tokens(name string, size int64) *bucket.Limit {
	return &bucket.Limit{Name: name, Kind: bucket.TokenBucket, Per: bucket.PerDependency, Size: size, Refill: bucket.Rate{N: 1, P: 500_000}}
}

func decided(reason admission.Reason, source admission.Source, limits ...admission.LimitState) *admission.Decision {
	return &admission.Decision{Reason: reason, Source: source, Limits: limits}
}

// show gives the lines of a metric as /metrics shows them, without comments.
func show(t *testing.T, reg *prometheus.Registry, name string) string {
	t.Helper()
	families, err := reg.Gather()
	require.NoError(t, err)
	var text strings.Builder
	for _, f := range families {
		if f.GetName() == name {
			_, err := expfmt.MetricFamilyToText(&text, f)
			require.NoError(t, err)
		}
	}
	var lines []string
	for line := range strings.Lines(text.String()) {
		if !strings.HasPrefix(line, "#") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return strings.Join(lines, "\n")
}

func TestDecisions(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewPedanticRegistry()
	m := telemetry.New(reg, telemetry.Options{})
	m.Policy("shop", 7, []string{"bulk", "default"}, nil)
	m.Decided("shop", "bulk", decided("", admission.SourceRedis), time.Millisecond)
	m.Decided("shop", "bulk", decided("", admission.SourceRedis), time.Millisecond)
	m.Decided("shop", "", decided(admission.ReasonLimit, admission.SourceLocal), time.Millisecond)
	m.Counted("shop", "default", decided(admission.ReasonLimit, admission.SourceLocal))
	m.Refused("shop", "bulk", admission.ReasonOverloaded)
	require.Equal(t, `sluice_decisions_total{class="bulk",dependency="shop",outcome="admitted",reason="",source="redis"} 2
sluice_decisions_total{class="bulk",dependency="shop",outcome="rejected",reason="overloaded",source=""} 1
sluice_decisions_total{class="default",dependency="shop",outcome="rejected",reason="limit",source="local"} 2`,
		show(t, reg, "sluice_decisions_total"))
	require.Contains(t, show(t, reg, "sluice_decision_seconds"), `sluice_decision_seconds_bucket{source="redis",le="5e-05"} 0`)
	require.Contains(t, show(t, reg, "sluice_decision_seconds"), `sluice_decision_seconds_count{source="local"} 1`)

	m.Policy("shop", 8, nil, nil) // counters go on
	m.Decided("shop", "", decided(admission.ReasonLimit, admission.SourceLocal), time.Millisecond)
	require.Contains(t, show(t, reg, "sluice_decisions_total"), `source="local"} 3`)
}

// Whatever callers send, the number of series is bounded by the policies.
func TestLabels_areClosed(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewPedanticRegistry()
	m := telemetry.New(reg, telemetry.Options{})
	m.Policy("shop", 7, []string{"bulk"}, []*bucket.Limit{tokens("rate", 5)})
	stray := admission.LimitState{Limit: tokens("made-up-limit", 5)}
	for i := range 1000 {
		made := fmt.Sprintf("made-up-%d", i)
		m.Decided("shop", made, decided("", admission.SourceRedis, stray), 0)
		m.Decided(made, "bulk", decided(admission.Reason(made), admission.Source(made), stray), 0)
		m.Refused(made, made, admission.Reason(made))
		m.StoreMode("shop", made)
	}
	n, err := testutil.GatherAndCount(reg, "sluice_decisions_total")
	require.NoError(t, err)
	require.Equal(t, 2, n)
	families, err := reg.Gather()
	require.NoError(t, err)
	for _, f := range families {
		for _, s := range f.GetMetric() {
			for _, l := range s.GetLabel() {
				require.NotContains(t, l.GetValue(), "made-up", f.GetName())
				require.NotEqual(t, "tenant", l.GetName())
			}
		}
	}
}

func TestLimits(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewPedanticRegistry()
	m := telemetry.New(reg, telemetry.Options{})
	rate, mine := tokens("rate", 40), tokens("mine", 3)
	mine.Per = bucket.PerTenant
	flight := &bucket.Limit{Name: "in-flight", Kind: bucket.Concurrency, Size: 8}
	m.Policy("shop", 7, nil, []*bucket.Limit{rate, mine, flight})
	require.Equal(t, `sluice_limit_refill_per_second{dependency="shop",limit="rate"} 2`, show(t, reg, "sluice_limit_refill_per_second"))
	require.Equal(t, `sluice_policy_version{dependency="shop"} 7`, show(t, reg, "sluice_policy_version"))
	require.Empty(t, show(t, reg, "sluice_limit_remaining"), "nothing is known yet, so nothing is exhausted")

	larger := tokens("rate", 80) // a plan's
	m.Decided("shop", "", decided("", admission.SourceRedis,
		admission.LimitState{Limit: rate, Remaining: 30}, admission.LimitState{Limit: mine, Remaining: 1}, admission.LimitState{Limit: flight, Remaining: 8}), 0)
	want := `sluice_limit_remaining{dependency="shop",limit="in-flight"} 8
sluice_limit_remaining{dependency="shop",limit="rate"} 30`
	require.Equal(t, want, show(t, reg, "sluice_limit_remaining"))
	m.Decided("shop", "", decided("", admission.SourceRedis, admission.LimitState{Limit: larger, Remaining: 70}), 0)
	require.Equal(t, want, show(t, reg, "sluice_limit_remaining"))
	require.Equal(t, `sluice_limit_used_ratio{dependency="shop",limit="in-flight"} 0
sluice_limit_used_ratio{dependency="shop",limit="rate"} 0.25`, show(t, reg, "sluice_limit_used_ratio"))

	m.Policy("shop", 8, nil, []*bucket.Limit{rate}) // what is known of a limit that stays, stays
	require.Equal(t, `sluice_limit_remaining{dependency="shop",limit="rate"} 30`, show(t, reg, "sluice_limit_remaining"))
	m.Policy("shop", 9, nil, nil)
	require.Empty(t, show(t, reg, "sluice_limit_remaining"))
	require.Empty(t, show(t, reg, "sluice_limit_refill_per_second"))
}

// TestShadow: what a limit that is tried out would have refused is counted, whoever its state is kept of.
func TestShadow(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewPedanticRegistry()
	m := telemetry.New(reg, telemetry.Options{})
	tried := tokens("tried", 3)
	tried.Per, tried.Shadow = bucket.PerTenant, true
	m.Policy("shop", 7, nil, []*bucket.Limit{tried, tokens("rate", 40)})
	require.Empty(t, show(t, reg, "sluice_shadow_refusals_total"))
	for _, wait := range []time.Duration{0, time.Second, bucket.Forever} {
		m.Decided("shop", "", decided("", admission.SourceRedis, admission.LimitState{Limit: tried, Wait: wait}), 0)
		m.Counted("shop", "", decided("", admission.SourceRedis, admission.LimitState{Limit: tried, Wait: wait}))
	}
	require.Equal(t, `sluice_shadow_refusals_total{dependency="shop",limit="tried"} 4`, show(t, reg, "sluice_shadow_refusals_total"))
}

func TestDropDependency(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewPedanticRegistry()
	m := telemetry.New(reg, telemetry.Options{DropDependency: true})
	rate := tokens("rate", 40)
	for _, d := range []string{"shop", "crm"} {
		m.Policy(d, 7, nil, []*bucket.Limit{rate})
		m.Decided(d, "", decided("", admission.SourceRedis, admission.LimitState{Limit: rate, Remaining: 30}), 0)
	}
	require.Equal(t, `sluice_decisions_total{class="default",outcome="admitted",reason="",source="redis"} 2`, show(t, reg, "sluice_decisions_total"))
	families, err := reg.Gather()
	require.NoError(t, err)
	for _, f := range families {
		require.NotContains(t, f.GetName(), "sluice_limit")
		require.NotContains(t, f.String(), `"dependency"`)
	}
}

func TestStore(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewPedanticRegistry()
	m := telemetry.New(reg, telemetry.Options{Version: "1.2.3", Commit: "abc"})
	m.StoreMode("shop", "redis")
	m.StoreMode("shop", "closed")
	m.StoreMode("shop", "closed")
	m.StoreMode("crm", "open")
	m.StoreMode("shop", "redis")
	require.Equal(t, `sluice_store_mode{mode="closed"} 0
sluice_store_mode{mode="local"} 0
sluice_store_mode{mode="open"} 1
sluice_store_mode{mode="redis"} 1`, show(t, reg, "sluice_store_mode"))
	require.Equal(t, `sluice_store_mode_changes_total{to="closed"} 1
sluice_store_mode_changes_total{to="local"} 0
sluice_store_mode_changes_total{to="open"} 1
sluice_store_mode_changes_total{to="redis"} 1`, show(t, reg, "sluice_store_mode_changes_total"))
	m.StoreCall("decide", time.Millisecond, nil)
	m.StoreCall("decide", time.Millisecond, fmt.Errorf("script: %w", bucket.ErrFull))
	m.ScriptLoaded()
	m.Repaired("meta", 3)
	m.Panicked()
	require.Contains(t, show(t, reg, "sluice_store_seconds"), `sluice_store_seconds_count{op="decide"} 2`)
	require.Equal(t, `sluice_store_errors_total{error="full",op="decide"} 1`, show(t, reg, "sluice_store_errors_total"))
	require.Equal(t, "sluice_script_loads_total 1", show(t, reg, "sluice_script_loads_total"))
	require.Equal(t, `sluice_repaired_total{what="meta"} 3`, show(t, reg, "sluice_repaired_total"))
	require.Equal(t, "sluice_panics_total 1", show(t, reg, "sluice_panics_total"))
	require.Contains(t, show(t, reg, "sluice_build_info"), `commit="abc"`)
	problems, err := testutil.GatherAndLint(reg)
	require.NoError(t, err)
	require.Empty(t, problems)
}

func TestConcurrency(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewPedanticRegistry()
	m := telemetry.New(reg, telemetry.Options{})
	rate := tokens("rate", 40)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := range 500 {
				m.Decided("shop", "", decided("", admission.SourceRedis, admission.LimitState{Limit: rate, Remaining: 1}), 0)
				if i%50 == 0 {
					m.Policy("shop", int64(i), []string{"bulk"}, []*bucket.Limit{rate})
				}
			}
		})
	}
	wg.Wait()
	n := 0.0
	families, err := reg.Gather()
	require.NoError(t, err)
	for _, f := range families {
		if f.GetName() == "sluice_decisions_total" {
			for _, s := range f.GetMetric() {
				n += s.GetCounter().GetValue()
			}
		}
	}
	require.InDelta(t, 2000, n, 0)
}

func BenchmarkDecided(b *testing.B) {
	m := telemetry.New(prometheus.NewRegistry(), telemetry.Options{})
	rate := tokens("rate", 40)
	m.Policy("shop", 7, []string{"bulk"}, []*bucket.Limit{rate})
	d := decided("", admission.SourceRedis, admission.LimitState{Limit: rate, Remaining: 30})
	b.ReportAllocs()
	for b.Loop() {
		m.Decided("shop", "bulk", d, 100*time.Microsecond)
	}
}

func BenchmarkDecidedParallel(b *testing.B) {
	m := telemetry.New(prometheus.NewRegistry(), telemetry.Options{})
	m.Policy("shop", 7, []string{"bulk"}, nil)
	d := decided("", admission.SourceRedis)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			m.Decided("shop", "bulk", d, 100*time.Microsecond)
		}
	})
}
