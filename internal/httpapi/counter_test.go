package httpapi_test

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"
)

// counter finds the decisions of dependency shop with these labels in what /metrics shows.
func counter(t *testing.T, a *api, class, outcome, reason, source string) prometheus.Collector {
	t.Helper()
	families, err := a.registry.Gather()
	require.NoError(t, err)
	sum := prometheus.NewGauge(prometheus.GaugeOpts{Name: "found"})
	want := map[string]string{"dependency": "shop", "class": class, "outcome": outcome, "reason": reason, "source": source}
	for _, f := range families {
		if f.GetName() != "sluice_decisions_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			if labels(m, want) {
				sum.Add(m.GetCounter().GetValue())
			}
		}
	}
	return sum
}

func labels(m *dto.Metric, want map[string]string) bool {
	for _, l := range m.GetLabel() {
		if want[l.GetName()] != l.GetValue() {
			return false
		}
	}
	return true
}
