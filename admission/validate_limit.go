package admission

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sluicehq/sluice/bucket"
)

const (
	millisecond = Duration(time.Millisecond)
	second      = Duration(time.Second)
	hour        = Duration(time.Hour)
	day         = 24 * hour
	year        = 366 * day
	minHold     = 10 * millisecond
	minWindow   = 100 * millisecond
)

func kinds() []bucket.Kind {
	return []bucket.Kind{bucket.TokenBucket, bucket.Concurrency, bucket.Quota, bucket.SlidingWindow, bucket.SlidingLog}
}

// fieldsOf lists the fields that belong to a kind, and how many of them, from the first, are required.
func fieldsOf(k bucket.Kind) (fields []string, required int) {
	switch k {
	case bucket.TokenBucket:
		return []string{"capacity", "refill", "initial", "oversize"}, 2
	case bucket.Concurrency:
		return []string{"max", "max_hold"}, 1
	case bucket.Quota:
		return []string{"limit", "every", "time_zone", "starts_at", "weekday", "day_of_month"}, 2
	case bucket.SlidingWindow, bucket.SlidingLog:
		return []string{"limit", "window"}, 2
	}
	return nil, 0
}

// said lists the kind-specific fields that were written, in the document's order.
func (l LimitDocument) said() []string {
	var names []string
	add := func(said bool, name string) {
		if said {
			names = append(names, name)
		}
	}
	add(l.Capacity != nil, "capacity")
	add(l.Refill != nil, "refill")
	add(l.Initial != nil, "initial")
	add(l.Oversize != "", "oversize")
	add(l.Max != nil, "max")
	add(l.MaxHold != nil, "max_hold")
	add(l.Limit != nil, "limit")
	add(l.Every != "", "every")
	add(l.TimeZone != "", "time_zone")
	add(l.StartsAt != "", "starts_at")
	add(l.Weekday != "", "weekday")
	add(l.DayOfMonth != nil, "day_of_month")
	add(l.Window != nil, "window")
	return names
}

func (c *checker) limit(at Path, written, l LimitDocument, classes map[string]ClassDocument) {
	if !c.isName(l.Name) {
		if l.Name == "" {
			c.add(at.Key("name"), "is missing; a limit is called by it in answers and metrics: %s", nameRule)
		} else {
			c.add(at.Key("name"), "is %.80q; allowed are %s", l.Name, nameRule)
		}
	}
	oneOf(c, at.Key("per"), l.Per, "", bucket.PerDependency, bucket.PerTenant, bucket.PerClass, bucket.PerTenantClass)
	oneOf(c, at.Key("on_exceeded"), l.OnExceeded, "", bucket.Wait, bucket.Reject)
	for i, class := range l.Classes {
		if _, ok := classes[class]; !ok {
			c.add(at.Key("classes").Index(i), "is %.64q, which is no class of the dependency; add it to classes, or use one of %s",
				class, listed(sortedKeys(classes)))
		} else if slices.Index(l.Classes, class) < i {
			c.add(at.Key("classes").Index(i), "names %q a second time; remove it", class)
		}
	}
	if !oneOf(c, at.Key("kind"), l.Kind, "none", kinds()...) {
		return
	}
	if l.Kind == bucket.Concurrency {
		if written.Unit != "" {
			c.add(at.Key("unit"), "does not belong to a concurrency limit, which counts asks; remove it")
		}
	} else if !c.isName(l.Unit) {
		c.add(at.Key("unit"), "is %.80q; allowed are %s", l.Unit, nameRule)
	}

	fields, required := fieldsOf(l.Kind)
	given := written.said()
	for _, f := range given {
		if !slices.Contains(fields, f) {
			c.add(at.Key(f), "does not belong to a %s, which takes %s; remove it%s", l.Kind, strings.Join(fields, ", "), homeOf(f))
		}
	}
	for _, f := range fields[:required] {
		if !slices.Contains(given, f) {
			c.add(at.Key(f), "is missing; a %s needs %s", l.Kind, strings.Join(fields[:required], " and "))
		}
	}
	checkParameters(l, func(message string, fields ...string) { c.add(at.Key(fields[0]), "%s", message) })
}

// homeOf says which kinds a misplaced field belongs to.
func homeOf(field string) string {
	var homes []string
	for _, k := range kinds() {
		if fields, _ := fieldsOf(k); slices.Contains(fields, field) {
			homes = append(homes, string(k))
		}
	}
	if len(homes) == 0 {
		return ""
	}
	return " or make it a " + strings.Join(homes, " or ")
}

// override checks what a plan or a tenant changes of a limit; under is what the tenant's plan changes already.
func (c *checker) override(at Path, l LimitDocument, under, o OverrideDocument) {
	given := LimitDocument{}.override(o).said()
	if len(given) == 0 {
		c.add(at, "changes nothing; say what is different or remove it")
		return
	}
	if !slices.Contains(kinds(), l.Kind) {
		return
	}
	fields, _ := fieldsOf(l.Kind)
	ownState := l.Per == bucket.PerTenant || l.Per == bucket.PerTenantClass
	for _, f := range given {
		switch {
		case !slices.Contains(fields, f):
			c.add(at.Key(f), "does not belong to %q, a %s, of which can be changed: %s", l.Name, l.Kind, strings.Join(changeable(l.Kind, ownState), ", "))
		case !slices.Contains(changeable(l.Kind, ownState), f):
			c.add(at.Key(f), "cannot differ by tenant, since %q keeps one count per %s; make it per: tenant, or change only %s",
				l.Name, l.Per, strings.Join(changeable(l.Kind, ownState), ", "))
		}
	}
	checkParameters(l.override(under).override(o), func(message string, fields ...string) {
		for _, f := range fields {
			if slices.Contains(given, f) {
				c.add(at.Key(f), "%s", message)
				return
			}
		}
	})
}

func changeable(k bucket.Kind, ownState bool) []string {
	switch k {
	case bucket.TokenBucket:
		if ownState {
			return []string{"capacity", "refill"}
		}
		return []string{"capacity"}
	case bucket.Concurrency:
		return []string{"max", "max_hold"}
	case bucket.Quota:
		if ownState {
			return []string{"limit", "time_zone", "starts_at", "weekday", "day_of_month"}
		}
	case bucket.SlidingWindow, bucket.SlidingLog:
		if ownState {
			return []string{"limit", "window"}
		}
	}
	return []string{"limit"}
}

// checkParameters checks the values of the fields that belong to the limit's kind. A problem is reported with the
// fields that it lies between, the likeliest first.
func checkParameters(l LimitDocument, report func(message string, fields ...string)) {
	size := func(field string, v *int64) bool {
		if v == nil {
			return false
		}
		if most := sizeBound(l.Kind); *v < 1 || *v > most {
			report(fmt.Sprintf("is %d; a %s takes whole numbers from 1 to %d", *v, l.Kind, most), field)
			return false
		}
		return true
	}
	span := func(field string, v *Duration, low, high Duration) bool {
		if v == nil {
			return false
		}
		if *v < low || *v > high || *v%millisecond != 0 {
			report(fmt.Sprintf("is %s; allowed are whole milliseconds from %s to %s", *v, low, high), field)
			return false
		}
		return true
	}
	switch l.Kind {
	case bucket.TokenBucket:
		sized := size("capacity", l.Capacity)
		if sized && l.Refill != nil {
			if err := l.Refill.FitCapacity(*l.Capacity); err != nil {
				report(err.Error(), "refill", "capacity")
			}
		}
		if l.Refill != nil && l.Refill.IsZero() {
			report(`is no rate; allowed are positive ones such as "10/s" or "1/min"`, "refill")
		}
		if sized && l.Initial != nil && (*l.Initial < 0 || *l.Initial > *l.Capacity) {
			report(fmt.Sprintf("is %d; allowed are whole numbers from 0 to the capacity, %d", *l.Initial, *l.Capacity), "initial")
		}
		if l.Oversize != "" && l.Oversize != oversizeDebt {
			report(fmt.Sprintf("is %.64q; allowed is debt, or leave it out: a cost over the capacity is then refused", l.Oversize), "oversize")
		}
	case bucket.Concurrency:
		size("max", l.Max)
		span("max_hold", l.MaxHold, minHold, day)
	case bucket.Quota:
		size("limit", l.Limit)
		checkCalendar(l, report)
	case bucket.SlidingWindow:
		sized := size("limit", l.Limit)
		if span("window", l.Window, minWindow, year) && sized {
			if ms := int64(*l.Window / millisecond); *l.Limit > bucket.MaxCredits/ms {
				report(fmt.Sprintf("is %s; with limit %d it cannot be counted exactly (limit x milliseconds is over 2^52): "+
					"lower the limit to at most %d or shorten the window", *l.Window, *l.Limit, bucket.MaxCredits/ms), "window", "limit")
			}
		}
	case bucket.SlidingLog:
		size("limit", l.Limit)
		span("window", l.Window, minWindow, year)
	}
}

func checkCalendar(l LimitDocument, report func(message string, fields ...string)) {
	switch l.Every {
	case bucket.Minute, bucket.Hour, bucket.Day, bucket.Week, bucket.Month:
	case "":
		return // reported as missing
	default:
		report(fmt.Sprintf("is %.64q; allowed are minute, hour, day, week, month", string(l.Every)), "every")
		return
	}
	if _, err := location(l.TimeZone); err != nil {
		report(err.Error()+`; allowed are names of the IANA database such as "Europe/Berlin" or "UTC"`, "time_zone")
	}
	if l.StartsAt != "" {
		if l.Every == bucket.Minute || l.Every == bucket.Hour {
			report("is a time of day, so it belongs to every: day, week or month only; remove it", "starts_at", "every")
		} else if _, err := timeOfDay(l.StartsAt); err != nil {
			report(err.Error()+`; allowed are "00:00" to "23:59"`, "starts_at")
		}
	}
	if l.Weekday != "" {
		if l.Every != bucket.Week {
			report("belongs to every: week only; remove it", "weekday", "every")
		} else if _, err := weekday(l.Weekday); err != nil {
			report(err.Error()+"; allowed are monday to sunday, in lower case", "weekday")
		}
	}
	if l.DayOfMonth != nil {
		if l.Every != bucket.Month {
			report("belongs to every: month only; remove it", "day_of_month", "every")
		} else if *l.DayOfMonth < 1 || *l.DayOfMonth > 31 {
			report(fmt.Sprintf("is %d; allowed are 1 to 31, where months that are shorter begin on their last day", *l.DayOfMonth), "day_of_month")
		}
	}
}
