package telemetry

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluicehq/sluice/admission"
	"github.com/sluicehq/sluice/bucket"
)

const (
	nSources = 4
	nReasons = 12
	// defaultClass is what an ask without a class belongs to.
	defaultClass = "default"
)

type seriesKey struct{ dependency, class string }

// series is what the decisions of one dependency and class are counted on. Counters are made when they are first needed:
// most combinations never occur.
type series struct {
	counters [nReasons][nSources]atomic.Pointer[prometheus.Counter]
	limits   []*limitGauges // shared by the classes of the dependency
}

// limitGauges show one dependency-wide limit, from the first decision on: 0 remaining until then would be a false alarm.
type limitGauges struct {
	name                 string
	size                 int64
	once                 sync.Once
	remaining, usedRatio prometheus.Gauge
}

// Policy announces the policy in force: from now on its dependency, classes and dependency-wide limits are label values.
// Counters go on. Class "default" is always among the classes.
func (m *Metrics) Policy(dependency string, version int64, classes []string, limits []*bucket.Limit) {
	m.mu.Lock()
	defer m.mu.Unlock()
	old := *m.series.Load()
	next := maps.Clone(old)
	drop(next, dependency)
	gauges := m.limitGauges(dependency, limits)
	if s := old[seriesKey{dependency, ""}]; s != nil {
		m.dropStale(dependency, s.limits, gauges)
	}
	// Class "" counts what is not of a known class.
	for _, class := range append([]string{"", defaultClass}, classes...) {
		next[seriesKey{dependency, class}] = &series{limits: gauges}
	}
	m.series.Store(&next)
	if m.perDependency {
		m.version.WithLabelValues(dependency).Set(float64(version))
	}
}

// Decided counts a decision that took that long, and shows what it left of the dependency-wide limits. An empty class is
// "default".
func (m *Metrics) Decided(dependency, class string, d *admission.Decision, took time.Duration) {
	source := sourceIndex(d.Source)
	s := m.count(dependency, class, d.Reason, source)
	m.decisionSeconds[source].Observe(took.Seconds())
	if s == nil || !m.perDependency {
		return
	}
	m.shadow(dependency, d)
	for i := range d.Limits {
		l := &d.Limits[i]
		if !dependencyWide(l.Limit) {
			continue
		}
		for _, g := range s.limits {
			if g.name == l.Limit.Name {
				g.once.Do(func() { g.resolve(m, dependency) })
				g.show(l)
				break
			}
		}
	}
}

// Counted counts a decision without its time: an item of a batch.
func (m *Metrics) Counted(dependency, class string, d *admission.Decision) {
	if s := m.count(dependency, class, d.Reason, sourceIndex(d.Source)); s != nil && m.perDependency {
		m.shadow(dependency, d)
	}
}

// shadow counts the shadow limits that would have refused.
func (m *Metrics) shadow(dependency string, d *admission.Decision) {
	for i := range d.Limits {
		if l := &d.Limits[i]; l.Limit.Shadow && l.Wait > 0 && !d.Replayed {
			m.shadowRefusals.WithLabelValues(dependency, l.Limit.Name).Inc()
		}
	}
}

// Refused counts an ask on which no decision was made.
func (m *Metrics) Refused(dependency, class string, reason admission.Reason) {
	m.count(dependency, class, reason, sourceIndex(""))
}

// count adds one and returns the series; nil for a dependency that was not announced.
func (m *Metrics) count(dependency, class string, reason admission.Reason, source int) *series {
	if class == "" {
		class = defaultClass
	}
	all := *m.series.Load()
	s := all[seriesKey{dependency, class}]
	if s == nil {
		class = ""
		s = all[seriesKey{dependency, ""}]
	}
	if s == nil {
		m.counter("", "", reason, source).Inc()
		return nil
	}
	at := &s.counters[reasonIndex(reason)][source]
	c := at.Load()
	if c == nil {
		made := m.counter(dependency, class, reason, source)
		c = &made
		at.Store(c)
	}
	(*c).Inc()
	return s
}

func (m *Metrics) counter(dependency, class string, reason admission.Reason, source int) prometheus.Counter {
	outcome := admission.OutcomeRejected
	if reason == admission.ReasonNone {
		outcome = admission.OutcomeAdmitted
	}
	reason = reasons()[reasonIndex(reason)]
	values := []string{class, string(outcome), string(reason), string(sources()[source])}
	if m.perDependency {
		values = append([]string{dependency}, values...)
	}
	return m.decisions.WithLabelValues(values...)
}

func (m *Metrics) limitGauges(dependency string, limits []*bucket.Limit) []*limitGauges {
	if !m.perDependency {
		return nil
	}
	var gauges []*limitGauges
	for _, l := range limits {
		if !dependencyWide(l) {
			continue
		}
		gauges = append(gauges, &limitGauges{name: l.Name, size: l.Size})
		if l.Kind == bucket.TokenBucket {
			m.refill.WithLabelValues(dependency, l.Name).Set(l.Refill.PerSecond())
		} else {
			m.refill.DeleteLabelValues(dependency, l.Name)
		}
	}
	return gauges
}

// dropStale ends the series of limits that the new policy does not have.
func (m *Metrics) dropStale(dependency string, old, next []*limitGauges) {
	for _, o := range old {
		if slices.ContainsFunc(next, func(n *limitGauges) bool { return n.name == o.name }) {
			continue
		}
		m.dropLimits(prometheus.Labels{"dependency": dependency, "limit": o.name})
	}
}

func (m *Metrics) dropLimits(of prometheus.Labels) {
	m.remaining.DeletePartialMatch(of)
	m.usedRatio.DeletePartialMatch(of)
	m.refill.DeletePartialMatch(of)
}

func (g *limitGauges) resolve(m *Metrics, dependency string) {
	g.remaining = m.remaining.WithLabelValues(dependency, g.name)
	g.usedRatio = m.usedRatio.WithLabelValues(dependency, g.name)
}

// show compares with the policy's own size: where a plan or an override gives a tenant another one, what is used is the
// same for all, what remains is not.
func (g *limitGauges) show(l *admission.LimitState) {
	left := max(0, g.size-(l.Limit.Size-l.Remaining))
	g.remaining.Set(float64(left))
	g.usedRatio.Set(1 - float64(left)/float64(g.size))
}

func dependencyWide(l *bucket.Limit) bool { return l.Per == bucket.PerDependency || l.Per == "" }

func drop(all map[seriesKey]*series, dependency string) {
	maps.DeleteFunc(all, func(k seriesKey, _ *series) bool { return k.dependency == dependency })
}

func sourceIndex(s admission.Source) int {
	switch s {
	case admission.SourceRedis:
		return 0
	case "lease":
		return 1
	case admission.SourceLocal:
		return 2
	}
	return nSources - 1
}

// reasons lists the values of the label reason in the order of their index; the last one stands for whatever the code
// forgot to list.
func reasons() [nReasons]admission.Reason {
	return [nReasons]admission.Reason{
		admission.ReasonNone, admission.ReasonLimit, admission.ReasonQuota, admission.ReasonCostExceeds,
		admission.ReasonMismatch, admission.ReasonStoreUnavailable, admission.ReasonOverloaded,
		admission.ReasonShuttingDown, admission.ReasonBatch, admission.ReasonInvalid, admission.ReasonUnknownDependency,
		"other",
	}
}

func reasonIndex(r admission.Reason) int {
	switch r {
	case admission.ReasonNone:
		return 0
	case admission.ReasonLimit:
		return 1
	case admission.ReasonQuota:
		return 2
	case admission.ReasonCostExceeds:
		return 3
	case admission.ReasonMismatch:
		return 4
	case admission.ReasonStoreUnavailable:
		return 5
	case admission.ReasonOverloaded:
		return 6
	case admission.ReasonShuttingDown:
		return 7
	case admission.ReasonBatch:
		return 8
	case admission.ReasonInvalid:
		return 9
	case admission.ReasonUnknownDependency:
		return 10
	case admission.ReasonNotCancellable: // of a grant, never of an ask
	}
	return nReasons - 1
}
