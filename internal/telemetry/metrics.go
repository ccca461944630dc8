// Package telemetry holds the metrics of a broker.
//
// Labels come from closed sets: the dependencies, classes and limits of the policies that were announced with Policy, and
// words of the code. A name that a caller made up never becomes a label value, and a tenant never is one. Decisions are
// counted on series that were resolved before, so that counting costs one map lookup.
package telemetry

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/sluicehq/sluice/admission"
	"github.com/sluicehq/sluice/bucket"
)

// Options set what the metrics look like.
type Options struct {
	// DropDependency leaves the label dependency out, for fleets with very many of them. What has a meaning only per
	// dependency (sluice_limit_*, sluice_policy_version) is then not exported.
	DropDependency bool
	// Version and Commit fill sluice_build_info; empty: "unknown".
	Version, Commit string
}

// Metrics are the metrics of one process. Use New.
type Metrics struct {
	perDependency bool

	decisions       *prometheus.CounterVec
	decisionSeconds [nSources]prometheus.Observer
	storeSeconds    *prometheus.HistogramVec
	storeErrors     *prometheus.CounterVec
	storeModes      *prometheus.GaugeVec
	modeChanges     *prometheus.CounterVec
	scriptLoads     prometheus.Counter
	repaired        *prometheus.CounterVec
	panics          prometheus.Counter

	// These are nil without perDependency.
	remaining, usedRatio, refill, version *prometheus.GaugeVec
	shadowRefusals                        *prometheus.CounterVec

	series atomic.Pointer[map[seriesKey]*series] // replaced as a whole, under mu
	mu     sync.Mutex
	modes  map[string]string // dependency -> mode
}

// New registers the metrics on reg. Registering them twice on one registry is a programming error and panics.
func New(reg prometheus.Registerer, o Options) *Metrics {
	f := promauto.With(reg)
	m := &Metrics{perDependency: !o.DropDependency, modes: map[string]string{}}
	m.series.Store(&map[seriesKey]*series{})

	m.decisions = f.NewCounterVec(prometheus.CounterOpts{
		Name: "sluice_decisions_total",
		Help: "Answers to asks; dry runs are not counted. Without a source where no decision was made.",
	}, m.labels("class", "outcome", "reason", "source"))
	seconds := f.NewHistogramVec(prometheus.HistogramOpts{
		Name: "sluice_decision_seconds", Help: "Time from a decoded ask to its decision.", Buckets: latencyBuckets(),
	}, []string{"source"})
	for i, s := range sources() {
		m.decisionSeconds[i] = seconds.WithLabelValues(string(s))
	}
	m.storeSeconds = f.NewHistogramVec(prometheus.HistogramOpts{
		Name: "sluice_store_seconds", Help: "Time of one call to the store.", Buckets: latencyBuckets(),
	}, []string{"op"})
	m.storeErrors = f.NewCounterVec(prometheus.CounterOpts{
		Name: "sluice_store_errors_total", Help: "Calls to the store that failed, by what is known of them.",
	}, []string{"op", "error"})
	m.storeModes = f.NewGaugeVec(prometheus.GaugeOpts{
		Name: "sluice_store_mode", Help: "1 while at least one dependency is answered in this mode.",
	}, []string{"mode"})
	m.modeChanges = f.NewCounterVec(prometheus.CounterOpts{
		Name: "sluice_store_mode_changes_total", Help: "Changes of a dependency's store mode.",
	}, []string{"to"})
	for _, mode := range Modes() {
		m.storeModes.WithLabelValues(mode).Set(0)
		m.modeChanges.WithLabelValues(mode)
	}
	m.scriptLoads = f.NewCounter(prometheus.CounterOpts{
		Name: "sluice_script_loads_total", Help: "Scripts that had to be sent in full because the store did not know them.",
	})
	m.repaired = f.NewCounterVec(prometheus.CounterOpts{
		Name: "sluice_repaired_total", Help: "Pieces of state that were found missing or broken and were put right.",
	}, []string{"what"})
	m.panics = f.NewCounter(prometheus.CounterOpts{
		Name: "sluice_panics_total", Help: "Panics that were caught in request handlers.",
	})
	if m.perDependency {
		limit := []string{"dependency", "limit"}
		m.remaining = f.NewGaugeVec(prometheus.GaugeOpts{
			Name: "sluice_limit_remaining", Help: "What the last decision left of a dependency-wide limit, in its unit.",
		}, limit)
		m.usedRatio = f.NewGaugeVec(prometheus.GaugeOpts{
			Name: "sluice_limit_used_ratio", Help: "Used part of a dependency-wide limit, 0 to 1, by the last decision.",
		}, limit)
		m.refill = f.NewGaugeVec(prometheus.GaugeOpts{
			Name: "sluice_limit_refill_per_second", Help: "Refill of a dependency-wide token bucket.",
		}, limit)
		m.shadowRefusals = f.NewCounterVec(prometheus.CounterOpts{
			Name: "sluice_shadow_refusals_total", Help: "Asks that a limit with shadow would have refused.",
		}, limit)
		m.version = f.NewGaugeVec(prometheus.GaugeOpts{
			Name: "sluice_policy_version", Help: "Version of the policy in force.",
		}, []string{"dependency"})
	}
	f.NewGaugeVec(prometheus.GaugeOpts{
		Name: "sluice_build_info", Help: "1, with what this process was built from.",
	}, []string{"version", "commit", "go_version"}).
		WithLabelValues(orUnknown(o.Version), orUnknown(o.Commit), runtime.Version()).Set(1)
	return m
}

// Modes lists the modes in which a dependency can be answered, DESIGN P10.
func Modes() []string { return []string{"redis", "local", "open", "closed"} }

// StoreCall records one call to the store and how it failed; op is a word of the code.
func (m *Metrics) StoreCall(op string, took time.Duration, err error) {
	m.storeSeconds.WithLabelValues(op).Observe(took.Seconds())
	if err == nil {
		return
	}
	kind := "other"
	switch {
	case errors.Is(err, bucket.ErrFull):
		kind = "full"
	case errors.Is(err, bucket.ErrNotRun):
		kind = "refused"
	case errors.Is(err, bucket.ErrUnavailable):
		kind = "no_answer"
	case errors.Is(err, bucket.ErrBroken):
		kind = "broken"
	}
	m.storeErrors.WithLabelValues(op, kind).Inc()
}

// StoreMode records the mode in which a dependency is answered from now on. Saying the same again does nothing; to
// begin with every dependency is in mode "redis". A mode that is none of Modes is ignored.
func (m *Metrics) StoreMode(dependency, mode string) {
	known := false
	for _, name := range Modes() {
		known = known || name == mode
	}
	if !known {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	old, seen := m.modes[dependency]
	if seen && old == mode {
		return
	}
	m.modes[dependency] = mode
	if seen || mode != "redis" {
		m.modeChanges.WithLabelValues(mode).Inc()
	}
	m.showModes()
}

func (m *Metrics) showModes() {
	in := map[string]float64{}
	for _, mode := range m.modes {
		in[mode] = 1
	}
	for _, mode := range Modes() {
		m.storeModes.WithLabelValues(mode).Set(in[mode])
	}
}

// ScriptLoaded counts a script that had to be sent in full.
func (m *Metrics) ScriptLoaded() { m.scriptLoads.Inc() }

// Repaired counts pieces of state that were put right; what is a word of the code.
func (m *Metrics) Repaired(what string, n int) { m.repaired.WithLabelValues(what).Add(float64(n)) }

// Panicked counts a panic that was caught in a request handler.
func (m *Metrics) Panicked() { m.panics.Inc() }

func (m *Metrics) labels(rest ...string) []string {
	if m.perDependency {
		return append([]string{"dependency"}, rest...)
	}
	return rest
}

// latencyBuckets reach from a decision in memory to a store that hangs.
func latencyBuckets() []float64 {
	return []float64{
		50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 100e-3, 250e-3, 1, 5,
	}
}

func orUnknown(s string) string {
	if s == "" {
		return "unknown"
	}
	return s
}

// sources lists the values of the label source in the order of their index.
func sources() [nSources]admission.Source {
	return [nSources]admission.Source{admission.SourceRedis, "lease", admission.SourceLocal, ""}
}
