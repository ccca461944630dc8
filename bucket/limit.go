package bucket

import (
	"slices"
	"time"
)

// Kind says how a limit counts.
type Kind string

// The kinds of limits.
const (
	// TokenBucket allows Size at once and Refill over time.
	TokenBucket Kind = "token_bucket"
	// Concurrency allows Size grants at the same time, each for at most Hold.
	Concurrency Kind = "concurrency"
	// Quota allows Size per calendar window.
	Quota Kind = "quota"
	// SlidingWindow allows Size per Window, counted by two adjacent counters of which the older one is weighted.
	SlidingWindow Kind = "sliding_window"
	// SlidingLog allows Size per Window exactly: it keeps the instant of every charge.
	SlidingLog Kind = "sliding_log"
)

// Per says of whom a limit keeps a count each.
type Per string

// The scopes of a limit.
const (
	PerDependency  Per = "dependency"
	PerTenant      Per = "tenant"
	PerClass       Per = "class"
	PerTenantClass Per = "tenant_class"
)

// OnExceeded says what a limit does to an ask that may wait.
type OnExceeded string

// What happens to an ask that may wait and does not fit.
const (
	// Wait lets it wait until it fits.
	Wait OnExceeded = "queue"
	// Reject refuses it at once.
	Reject OnExceeded = "reject"
)

// Requests is the unit that an ask costs 1 of unless it says otherwise.
const Requests = "requests"

// Bounds of what a limit can hold; the state is computed in float64, which is exact to 2^53.
const (
	// MaxCredits bounds Size x Refill.P of a token bucket, and Size x milliseconds of a sliding window.
	MaxCredits = int64(1) << 52
	// MaxSize bounds every cost, and the sizes of the limits that have no bound of their own below.
	MaxSize = int64(1) << 40
	// MaxLog bounds the size of a sliding log, which keeps every charge.
	MaxLog = 1000
	// MaxAhead is how far ahead a slot may lie.
	MaxAhead = time.Minute
)

// Limit is one limit with the parameters that are in force for some tenants: the policy's, or those of a plan or of an
// override. It is not changed after it was given away.
type Limit struct {
	Name    string   // unique in the policy, [a-z0-9][a-z0-9._-]{0,62}
	Kind    Kind     //
	Per     Per      // default PerDependency
	Classes []string // confines it to these classes; empty: all
	Unit    string   // the unit of cost it counts, default Requests; a Concurrency counts asks and has none
	Shadow  bool     // counts and reports, never refuses

	// OnExceeded is Wait by default for token buckets and concurrency, Reject for the windows.
	OnExceeded OnExceeded

	Size    int64         // capacity, max or limit: what fits at once; at least 1
	Refill  Rate          // TokenBucket
	Initial int64         // TokenBucket: its level when it is installed first, 0 to Size
	Debt    bool          // TokenBucket: a cost over Size fits an untouched bucket and is paid off afterwards
	Hold    time.Duration // Concurrency: a grant ends by itself after this time
	Every   Calendar      // Quota
	Window  time.Duration // SlidingWindow, SlidingLog; whole milliseconds
}

// AppliesTo reports whether the limit counts asks of the class.
func (l *Limit) AppliesTo(class string) bool {
	return len(l.Classes) == 0 || slices.Contains(l.Classes, class)
}

// ofTenant reports whether the limit's state is kept with the tenant.
func (l *Limit) ofTenant() bool { return l.Per == PerTenant || l.Per == PerTenantClass }

// Identity names what the limit counts: its name together with its kind, whom it counts for, and its unit. A limit that
// changes any of them counts anew under the same name, as one that is renamed does; with other parameters it goes on.
func (l *Limit) Identity() string {
	kind := map[Kind]string{TokenBucket: "t", Concurrency: "c", Quota: "q", SlidingWindow: "w", SlidingLog: "l"}[l.Kind]
	per := map[Per]string{PerDependency: "d", PerTenant: "t", PerClass: "c", PerTenantClass: "b"}[l.Per]
	if l.Kind == Concurrency || l.Unit == Requests {
		return kind + per + ":" + l.Name
	}
	return kind + per + ":" + l.Name + ":" + l.Unit
}

// field names the limit's state in the hash that holds it.
func (l *Limit) field(class string) string {
	if l.Per == PerClass || l.Per == PerTenantClass {
		return l.Identity() + "/" + class
	}
	return l.Identity()
}

// spacing is the pace at which losers of a crowd are sent back: that at which the limit yields in the long run. What comes
// all at once, as a window does at its end, is spread over the time for which losers are spread at all.
func (l *Limit) spacing() Rate {
	over := func(d time.Duration) Rate { return reduced(l.Size, min(d, MaxAhead).Microseconds()) }
	switch l.Kind {
	case TokenBucket:
		return l.Refill
	case Concurrency:
		return over(l.Hold)
	case Quota:
		return over(l.Every.length())
	case SlidingWindow, SlidingLog:
		return over(l.Window)
	}
	return Rate{N: 1, P: 1}
}

// Set is the limits that apply to one class of the tenants that share their parameters, in the policy's order. Admission
// compiles it once per policy version and shares it between asks; the limiter groups asks by it.
type Set struct {
	version int64
	limits  []*Limit
	fields  []string
	units   []string // the units the limits count, Requests first where it occurs
	unit    []int    // limit -> index into units, -1 for Concurrency
	anchor  anchor
	ends    bool // some limit keeps ends, which are named by the ask's id
	tenants bool // some limit's state is kept with the tenant

	tenantEnds int // how many limits keep ends with the tenant
	endsCost   int // how many commands of an ask the limits that keep ends add
	linesCost  int // and those whose slots are ordered within the tenant
}

// anchor says whose last slot a new slot may not precede: the dependency's, or where no bucket is dependency-wide, the
// tenant's.
type anchor int

const (
	anchorNone anchor = iota // no token bucket: slots are not ordered
	anchorDependency
	anchorTenant
)

// NewSet compiles the limits of a policy version that apply to the class.
func NewSet(version int64, limits []*Limit, class string) *Set {
	return NewWholeSet(version, slices.DeleteFunc(slices.Clone(limits), func(l *Limit) bool { return !l.AppliesTo(class) }), class)
}

// NewWholeSet compiles all the limits, also those that are confined to other classes: to look at them, and for the verbs on
// grants of a class that is no more.
func NewWholeSet(version int64, limits []*Limit, class string) *Set {
	s := &Set{version: version}
	for _, l := range limits {
		u := -1
		if l.Kind != Concurrency {
			u = s.unitIndex(l.Unit)
		}
		s.limits = append(s.limits, l)
		s.fields = append(s.fields, l.field(class))
		s.unit = append(s.unit, u)
		if l.Kind == Concurrency || l.Kind == SlidingLog {
			s.ends = true
			s.endsCost += 2 // a set is a key of its own, with an end of its own
			if l.ofTenant() {
				s.tenantEnds++
				s.endsCost += 4
			}
		}
		s.tenants = s.tenants || l.ofTenant()
		if l.Kind == TokenBucket {
			if l.ofTenant() {
				s.linesCost += 2
			}
			switch {
			case !l.ofTenant():
				s.anchor = anchorDependency
			case s.anchor == anchorNone:
				s.anchor = anchorTenant
			}
		}
	}
	return s
}

func (s *Set) unitIndex(unit string) int {
	for i, u := range s.units {
		if u == unit {
			return i
		}
	}
	s.units = append(s.units, unit)
	return len(s.units) - 1
}

// Version is the policy version that the set was compiled from.
func (s *Set) Version() int64 { return s.version }

// Limits lists the limits in the policy's order. The slice is shared: do not change it.
func (s *Set) Limits() []*Limit { return s.limits }

// Units lists the units that the limits count.
func (s *Set) Units() []string { return s.units }
