package admission

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
	_ "time/tzdata" // a policy's time zones must exist wherever the process runs

	"github.com/sluicehq/sluice/bucket"
)

// Policy is one version of what is configured for one dependency, compiled. It does not change and may be shared.
type Policy struct {
	name    string
	version int64
	origin  int64              // the version that it brought back after a loss, else its own: what it is as old as
	doc     DependencyDocument // with defaults
	written DependencyDocument // as given
	classes []string
	units   []string

	// groups[0] holds the policy's own limits; the others those of plans and of tenants with overrides. Tenants whose
	// parameters are the same share a group, so that the number of tenants does not count.
	groups   []group
	byTenant map[string]int
	// classless: no limit looks at the class, so that all classes can share one set and one batch.
	classless bool
	sets      sync.Map // setKey -> *bucket.Set
}

type group struct{ limits []*bucket.Limit }

type setKey struct {
	group int
	class string
	whole bool
}

// Compile checks a document and makes the policy that decides by it. The error is a *ValidationError with every mistake.
func Compile(name string, version int64, doc DependencyDocument) (*Policy, error) {
	if problems := ValidateDependency(name, doc); len(problems) > 0 {
		return nil, &ValidationError{Problems: problems}
	}
	p := &Policy{name: name, version: version, origin: version, written: doc, doc: Defaults(doc), byTenant: map[string]int{}}
	p.classes = slices.Sorted(maps.Keys(p.doc.Classes))
	base, err := compileLimits(p.doc.Limits, nil, nil)
	if err != nil {
		return nil, fmt.Errorf("policy %s: %w", name, err)
	}
	p.groups = []group{{limits: base}}
	p.units = bucketUnits(base)
	p.classless = true
	for _, l := range base {
		if len(l.Classes) > 0 || l.Per == bucket.PerClass || l.Per == bucket.PerTenantClass {
			p.classless = false
		}
	}
	if err := p.compileTenants(); err != nil {
		return nil, fmt.Errorf("policy %s: %w", name, err)
	}
	return p, nil
}

func (p *Policy) compileTenants() error {
	known := map[string]int{"": 0}
	for _, tenant := range slices.Sorted(maps.Keys(p.doc.Tenants)) {
		t := p.doc.Tenants[tenant]
		plan := p.doc.Plans[t.Plan].Limits
		if len(plan) == 0 && len(t.Limits) == 0 {
			continue
		}
		key, err := fingerprint(plan, t.Limits)
		if err != nil {
			return err
		}
		i, ok := known[key]
		if !ok {
			limits, err := compileLimits(p.doc.Limits, plan, t.Limits)
			if err != nil {
				return err
			}
			i = len(p.groups)
			p.groups = append(p.groups, group{limits: limits})
			known[key] = i
		}
		p.byTenant[tenant] = i
	}
	return nil
}

func bucketUnits(limits []*bucket.Limit) []string {
	var units []string
	for _, l := range limits {
		if l.Kind != bucket.Concurrency && !slices.Contains(units, l.Unit) {
			units = append(units, l.Unit)
		}
	}
	return units
}

// Version is the number under which the store keeps the policy.
func (p *Policy) Version() int64 { return p.version }

// Set is what an ask of the tenant and class is decided by. It is compiled once and shared; class "" means "default".
// An unknown class is a *FieldError that names the known ones.
func (p *Policy) Set(tenant, class string) (*bucket.Set, error) {
	if class == "" {
		class = DefaultClass
	}
	if _, ok := p.doc.Classes[class]; !ok {
		return nil, &FieldError{Field: "class", Message: "must be one of " + strings.Join(p.classes, ", ")}
	}
	key := setKey{group: p.byTenant[tenant], class: class}
	if p.classless {
		key.class = ""
	}
	if s, ok := p.sets.Load(key); ok {
		return s.(*bucket.Set), nil
	}
	s, _ := p.sets.LoadOrStore(key, bucket.NewSet(p.version, p.groups[key.group].limits, class))
	return s.(*bucket.Set), nil
}

// wholeSet is all the tenant's limits, whatever classes they are confined to. The class need not exist any more.
func (p *Policy) wholeSet(tenant, class string) *bucket.Set {
	if class == "" {
		class = DefaultClass
	}
	key := setKey{group: p.byTenant[tenant], class: class, whole: true}
	if s, ok := p.sets.Load(key); ok {
		return s.(*bucket.Set)
	}
	s := bucket.NewWholeSet(p.version, p.groups[key.group].limits, class)
	if _, known := p.doc.Classes[class]; known { // of others there may be any number
		p.sets.Store(key, s)
	}
	return s
}

// Classes lists the known classes, sorted. The slice is shared: do not change it.
func (p *Policy) Classes() []string { return p.classes }

// Limits lists the policy's limits with its own parameters, in its order, whatever class they are confined to; what
// holds for a tenant is in Set. The slice is shared: do not change it.
func (p *Policy) Limits() []*bucket.Limit { return p.groups[0].limits }

// Units lists what the limits count, in the policy's order; a cost in any other unit is a mistake.
func (p *Policy) Units() []string { return p.units }

// Document is the policy as it was written, without defaults. Do not change what it refers to.
func (p *Policy) Document() DependencyDocument { return p.written }

// Description is free text for people.
func (p *Policy) Description() string { return p.doc.Description }

// Owners are the teams that the dependency belongs to.
func (p *Policy) Owners() []string { return p.doc.Owners }

// StoreTimeout is how long a decision waits for the store.
func (p *Policy) StoreTimeout() time.Duration { return p.doc.Store.Timeout.Std() }

// OnFailure is what decides when the store does not.
func (p *Policy) OnFailure() FailureMode { return p.doc.Store.OnFailure }

// SettleWithin is how long a grant can be settled.
func (p *Policy) SettleWithin() time.Duration { return p.doc.SettleWithin.Std() }

// IdempotencyTTL is how long an admitted answer is remembered under its key.
func (p *Policy) IdempotencyTTL() time.Duration { return p.doc.IdempotencyTTL.Std() }

// NotInForce names what the document says and this release does not act on yet, so that nobody relies on it.
func (p *Policy) NotInForce() []string {
	d := p.written
	var names []string
	add := func(said bool, name string) {
		if said {
			names = append(names, name)
		}
	}
	add(d.Queue != nil, "queue")
	ordered, weighted := false, false
	for _, c := range d.Classes {
		ordered = ordered || c.Tier != nil
		weighted = weighted || c.Weight != nil
	}
	add(ordered, "classes: tier")
	add(weighted, "classes: weight")
	planned, owned := false, false
	for _, pl := range d.Plans {
		planned = planned || pl.Weight != nil
	}
	for _, t := range d.Tenants {
		owned = owned || t.Weight != nil
	}
	add(planned, "plans: weight")
	add(owned, "tenants: weight")
	waits := false
	for _, l := range d.Limits {
		waits = waits || l.OnExceeded == bucket.Wait
	}
	add(waits, "limits: on_exceeded: queue")
	add(d.Store != nil && d.Store.OnFailure == FailLocal, "store: on_failure: local")
	add(d.Store != nil && d.Store.MinReplicas != nil, "store: min_replicas")
	add(d.Lease != nil, "lease")
	add(d.Partner != nil, "partner")
	add(d.Jobs != nil, "jobs")
	add(d.Retention != nil, "retention")
	return names
}

// NotInForce names what the file says beside its dependencies and this release does not act on yet.
func (d *Document) NotInForce() []string {
	var names []string
	if d.ManagedBy == ManagedByReview {
		names = append(names, "managed_by: review")
	}
	if d.Callbacks != nil {
		names = append(names, "callbacks")
	}
	return names
}
