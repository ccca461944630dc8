package admission

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/sluicehq/sluice/bucket"
)

// Who decides what a policy is.
const (
	ManagedByFile   = "file"
	ManagedByReview = "review"
)

// compileLimits makes the limits that hold under the overrides of a plan and of a tenant. The document has its
// defaults and was found valid.
func compileLimits(docs []LimitDocument, plan, tenant map[string]OverrideDocument) ([]*bucket.Limit, error) {
	limits := make([]*bucket.Limit, 0, len(docs))
	for _, d := range docs {
		l, err := compileLimit(d.override(plan[d.Name]).override(tenant[d.Name]))
		if err != nil {
			return nil, fmt.Errorf("limit %s: %w", d.Name, err)
		}
		limits = append(limits, l)
	}
	return limits, nil
}

func compileLimit(d LimitDocument) (*bucket.Limit, error) {
	l := &bucket.Limit{
		Name: d.Name, Kind: d.Kind, Per: d.Per, Classes: slices.Clone(d.Classes), Unit: d.Unit, Shadow: d.Shadow,
		OnExceeded: d.OnExceeded,
	}
	switch d.Kind {
	case bucket.TokenBucket:
		l.Size, l.Refill, l.Debt = *d.Capacity, *d.Refill, d.Oversize == oversizeDebt
		l.Initial = *d.Initial
	case bucket.Concurrency:
		l.Size, l.Hold = *d.Max, d.MaxHold.Std()
	case bucket.Quota:
		l.Size = *d.Limit
		var err error
		if l.Every, err = d.calendar(); err != nil {
			return nil, err
		}
	case bucket.SlidingWindow, bucket.SlidingLog:
		l.Size, l.Window = *d.Limit, d.Window.Std()
	}
	return l, nil
}

func (l LimitDocument) calendar() (bucket.Calendar, error) {
	loc, err := location(l.TimeZone)
	if err != nil {
		return bucket.Calendar{}, err
	}
	c := bucket.Calendar{Every: l.Every, Location: loc}
	if l.StartsAt != "" {
		if c.StartsAt, err = timeOfDay(l.StartsAt); err != nil {
			return bucket.Calendar{}, err
		}
	}
	if l.Weekday != "" {
		if c.Weekday, err = weekday(l.Weekday); err != nil {
			return bucket.Calendar{}, err
		}
	}
	if l.DayOfMonth != nil {
		c.DayOfMonth = int(*l.DayOfMonth)
	}
	return c, nil
}

// override is the limit with what the override says put in its place.
func (l LimitDocument) override(o OverrideDocument) LimitDocument {
	l.Capacity = first(o.Capacity, l.Capacity)
	if o.Capacity != nil && l.Initial != nil {
		// A plan may lower the capacity below the policy's initial level.
		l.Initial = new(min(*l.Initial, *l.Capacity))
	}
	l.Refill = first(o.Refill, l.Refill)
	l.Max = first(o.Max, l.Max)
	l.MaxHold = first(o.MaxHold, l.MaxHold)
	l.Limit = first(o.Limit, l.Limit)
	l.TimeZone = orText(o.TimeZone, l.TimeZone)
	l.StartsAt = orText(o.StartsAt, l.StartsAt)
	l.Weekday = orText(o.Weekday, l.Weekday)
	l.DayOfMonth = first(o.DayOfMonth, l.DayOfMonth)
	l.Window = first(o.Window, l.Window)
	return l
}

func first[T any](a, b *T) *T {
	if a != nil {
		return a
	}
	return b
}

// fingerprint is equal for equal overrides.
func fingerprint(overrides ...map[string]OverrideDocument) (string, error) {
	for i, o := range overrides {
		o = maps.Clone(o)
		maps.DeleteFunc(o, func(_ string, v OverrideDocument) bool { return v == OverrideDocument{} })
		if len(o) == 0 {
			o = nil
		}
		overrides[i] = o
	}
	text, err := json.Marshal(overrides)
	if err != nil {
		return "", fmt.Errorf("compare overrides: %w", err)
	}
	return string(text), nil
}

func location(name string) (*time.Location, error) {
	if name == "" {
		return time.UTC, nil
	}
	if name == "Local" {
		return nil, fmt.Errorf("time zone %q would differ from host to host", name)
	}
	loc, err := time.LoadLocation(name)
	if err != nil {
		return nil, fmt.Errorf("time zone %.64q does not exist", name)
	}
	return loc, nil
}

func timeOfDay(text string) (time.Duration, error) {
	t, err := time.Parse("15:04", text)
	if err != nil || len(text) != len("15:04") {
		return 0, fmt.Errorf("%.64q is no time of day", text)
	}
	return time.Duration(t.Hour())*time.Hour + time.Duration(t.Minute())*time.Minute, nil
}

func weekday(text string) (time.Weekday, error) {
	i := slices.Index(weekdays(), text)
	if i < 0 {
		return 0, fmt.Errorf("%.64q is no weekday", text)
	}
	return time.Weekday(i), nil
}

func weekdays() []string {
	return []string{"sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday"}
}
