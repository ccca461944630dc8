package admission

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/sluicehq/sluice/bucket"
)

// Bounds of a policy document. They keep a version small enough to be loaded at each change and its metrics few.
const (
	maxDependencies = 10_000
	maxLimits       = 32
	maxClasses      = 64
	maxTeams        = 64
	maxText         = 4096    // bytes of a description
	maxTenant       = 256     // bytes of a tenant's or team's name
	maxDocument     = 1 << 20 // bytes of one dependency's canonical JSON
	maxWeight       = 10_000
	maxTier         = 9
)

const (
	nameRule     = "1 to 63 of a-z, 0-9, dot, underscore and dash, beginning with a letter or digit"
	oversizeDebt = "debt"
)

// Problem is one mistake in a document.
type Problem struct {
	Path    Path
	Message string // what is wrong, what is allowed, and how to mend it
}

// ValidationError holds every mistake of a document.
type ValidationError struct{ Problems []Problem }

// Error lists the mistakes, one a line where there are several.
func (e *ValidationError) Error() string {
	lines := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		lines[i] = string(p.Path) + ": " + p.Message
	}
	if len(lines) == 1 {
		return "invalid policy: " + lines[0]
	}
	return "invalid policy:\n  " + strings.Join(lines, "\n  ")
}

// Validate returns every mistake of the document, none if it is right. It may be called with or without Defaults.
func Validate(doc *Document) []Problem {
	c := &checker{}
	oneOf(c, "managed_by", doc.ManagedBy, "", ManagedByFile, ManagedByReview)
	switch n := len(doc.Dependencies); {
	case n == 0:
		c.add("dependencies", "is missing or empty; name at least one dependency with its limits")
	case n > maxDependencies:
		c.add("dependencies", "has %d entries; at most %d are allowed", n, maxDependencies)
	}
	for _, name := range slices.Sorted(maps.Keys(doc.Dependencies)) {
		c.dependency(Path("dependencies").Key(name), name, doc.Dependencies[name])
	}
	c.callbacks("callbacks", doc.Callbacks)
	return c.problems
}

// ValidateDependency returns every mistake of one dependency's document; paths begin with "dependencies".
func ValidateDependency(name string, doc DependencyDocument) []Problem {
	c := &checker{}
	c.dependency(Path("dependencies").Key(name), name, doc)
	return c.problems
}

type checker struct {
	problems []Problem
	name     *regexp.Regexp
}

func (c *checker) add(at Path, format string, args ...any) {
	c.problems = append(c.problems, Problem{Path: at, Message: fmt.Sprintf(format, args...)})
}

// isName reports whether the text can name a dependency, limit, class, plan or unit.
func (c *checker) isName(text string) bool {
	if c.name == nil {
		c.name = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,62}$`)
	}
	return c.name.MatchString(text)
}

func (c *checker) dependency(at Path, name string, written DependencyDocument) {
	if !c.isName(name) {
		c.add(at, "is no name for a dependency; allowed are %s", nameRule)
	}
	d := Defaults(written)
	if len(d.Description) > maxText || !utf8.ValidString(d.Description) {
		c.add(at.Key("description"), "must be UTF-8 text of at most %d bytes", maxText)
	}
	c.teams(at.Key("owners"), d.Owners)
	c.teams(at.Key("consumers"), d.Consumers)
	switch {
	case len(d.Limits) == 0 && !d.Unlimited:
		c.add(at.Key("limits"), "is missing or empty; add a limit, or say unlimited: true if nothing is ever to be refused")
	case len(d.Limits) > 0 && d.Unlimited:
		c.add(at.Key("unlimited"), "is true, and there are limits; remove one or the other")
	case len(d.Limits) > maxLimits:
		c.add(at.Key("limits"), "has %d entries; at most %d are allowed", len(d.Limits), maxLimits)
	}
	c.classes(at.Key("classes"), d.Classes)
	for i := range d.Limits {
		c.limit(at.Key("limits").Index(i), written.Limits[i], d.Limits[i], d.Classes)
		for j := range i {
			if d.Limits[i].Name != "" && d.Limits[i].Name == d.Limits[j].Name {
				c.add(at.Key("limits").Index(i).Key("name"), "is %q, like limits[%d]; each limit of a dependency needs a name of its own", d.Limits[i].Name, j)
				break
			}
		}
	}
	c.tenancy(at, d)
	c.queue(at.Key("queue"), d.Queue, d.Limits)
	c.store(at.Key("store"), d.Store)
	c.lease(at.Key("lease"), d.Lease, d.Limits)
	c.partner(at.Key("partner"), d.Partner)
	c.jobs(at.Key("jobs"), d.Jobs)
	c.retention(at.Key("retention"), d.Retention)
	c.duration(at.Key("idempotency_ttl"), d.IdempotencyTTL, second, 7*day)
	c.duration(at.Key("settle_within"), d.SettleWithin, second, day)
	if text, err := written.Canonical(); err != nil {
		c.add(at, "cannot be stored: %v", err)
	} else if len(text) > maxDocument {
		c.add(at, "takes %d bytes as JSON; at most %d are allowed: share overrides by plans", len(text), maxDocument)
	}
}

func (c *checker) teams(at Path, teams []string) {
	if len(teams) > maxTeams {
		c.add(at, "has %d entries; at most %d are allowed", len(teams), maxTeams)
	}
	for i, t := range teams {
		if t == "" || len(t) > maxTenant || !utf8.ValidString(t) {
			c.add(at.Index(i), "must be the name of a team, 1 to %d bytes of UTF-8", maxTenant)
		} else if slices.Index(teams, t) < i {
			c.add(at.Index(i), "names %q a second time; remove it", t)
		}
	}
}

func (c *checker) classes(at Path, classes map[string]ClassDocument) {
	if len(classes) > maxClasses {
		c.add(at, "has %d entries; at most %d are allowed, since each is a metric label", len(classes), maxClasses)
	}
	for _, name := range slices.Sorted(maps.Keys(classes)) {
		p := at.Key(name)
		if !c.isName(name) {
			c.add(p, "is no name for a class; allowed are %s", nameRule)
		}
		c.integer(p.Key("tier"), classes[name].Tier, 0, maxTier)
		c.integer(p.Key("weight"), classes[name].Weight, 1, maxWeight)
	}
}

// tenancy checks plans, tenants and their overrides.
func (c *checker) tenancy(at Path, d DependencyDocument) {
	limits := map[string]LimitDocument{}
	var names []string
	for _, l := range d.Limits {
		if _, twice := limits[l.Name]; !twice {
			limits[l.Name] = l
			names = append(names, l.Name)
		}
	}
	overrides := func(p Path, under, own map[string]OverrideDocument) {
		for _, name := range slices.Sorted(maps.Keys(own)) {
			l, ok := limits[name]
			if !ok {
				c.add(p.Key(name), "names a limit that the dependency does not have; it has %s", listed(names))
				continue
			}
			c.override(p.Key(name), l, under[name], own[name])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(d.Plans)) {
		p := at.Key("plans").Key(name)
		if !c.isName(name) {
			c.add(p, "is no name for a plan; allowed are %s", nameRule)
		}
		c.integer(p.Key("weight"), d.Plans[name].Weight, 1, maxWeight)
		overrides(p.Key("limits"), nil, d.Plans[name].Limits)
	}
	plans := slices.Sorted(maps.Keys(d.Plans))
	for _, name := range slices.Sorted(maps.Keys(d.Tenants)) {
		t, p := d.Tenants[name], at.Key("tenants").Key(name)
		if len(name) > maxTenant || !utf8.ValidString(name) {
			c.add(p, "is no name for a tenant; allowed is UTF-8 of at most %d bytes", maxTenant)
		}
		if _, ok := d.Plans[t.Plan]; !ok && t.Plan != "" {
			c.add(p.Key("plan"), "is %q, which is not among the plans; there are %s", t.Plan, listed(plans))
		}
		c.integer(p.Key("weight"), t.Weight, 1, maxWeight)
		overrides(p.Key("limits"), d.Plans[t.Plan].Limits, t.Limits)
	}
}

// oneOf checks a word that is chosen from a list; unset is what it is if it may be left out.
func oneOf[T ~string](c *checker, at Path, value, unset T, allowed ...T) bool {
	if value == unset && unset == "" || slices.Contains(allowed, value) {
		return true
	}
	words := make([]string, len(allowed))
	for i, a := range allowed {
		words[i] = string(a)
	}
	if value == "" {
		c.add(at, "is missing; allowed are %s", strings.Join(words, ", "))
	} else {
		c.add(at, "is %.64q; allowed are %s", string(value), strings.Join(words, ", "))
	}
	return false
}

func listed(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	const most = 20
	if len(names) > most {
		return strings.Join(names[:most], ", ") + ", ..."
	}
	return strings.Join(names, ", ")
}

func (c *checker) integer(at Path, v *int64, low, high int64) {
	if v != nil && (*v < low || *v > high) {
		c.add(at, "is %d; allowed are whole numbers from %d to %d", *v, low, high)
	}
}

func (c *checker) number(at Path, v *float64, low, high float64) {
	if v != nil && !(*v >= low && *v <= high) {
		c.add(at, "is %g; allowed are numbers from %g to %g", *v, low, high)
	}
}

func (c *checker) duration(at Path, v *Duration, low, high Duration) {
	if v != nil && (*v < low || *v > high) {
		c.add(at, "is %s; allowed are durations from %s to %s", *v, low, high)
	}
}

// sizes of limits are bounded by what the state can count.
func sizeBound(k bucket.Kind) int64 {
	switch k {
	case bucket.TokenBucket:
		return bucket.MaxCredits
	case bucket.SlidingLog:
		return bucket.MaxLog
	case bucket.Concurrency, bucket.Quota, bucket.SlidingWindow:
	}
	return bucket.MaxSize
}
