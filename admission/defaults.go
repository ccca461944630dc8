package admission

import (
	"maps"
	"slices"
	"time"

	"github.com/sluicehq/sluice/bucket"
)

// DefaultClass is the class that every policy has.
const DefaultClass = "default"

// Defaults is the document with everything filled in that was left out and has a default; what is required and missing
// stays missing, and so do the blocks that were not written, but for store. The given document is not changed.
func Defaults(d DependencyDocument) DependencyDocument {
	d.Limits = slices.Clone(d.Limits)
	for i := range d.Limits {
		d.Limits[i] = limitDefaults(d.Limits[i])
	}
	classes := make(map[string]ClassDocument, len(d.Classes)+1)
	classes[DefaultClass] = ClassDocument{}
	maps.Copy(classes, d.Classes)
	for name, c := range classes {
		classes[name] = ClassDocument{Tier: or(c.Tier, 1), Weight: or(c.Weight, 1)}
	}
	d.Classes = classes

	store := clone(d.Store)
	d.Store = &store
	store.Timeout = or(store.Timeout, ms(10))
	store.OnFailure = orText(store.OnFailure, FailClosed)
	store.MinReplicas = or(store.MinReplicas, 0)
	d.IdempotencyTTL = or(d.IdempotencyTTL, Duration(10*time.Minute))
	d.SettleWithin = or(d.SettleWithin, Duration(10*time.Minute))

	d.Queue = queueDefaults(d.Queue, d.Limits)
	if d.Lease != nil {
		d.Lease = &LeaseDocument{MaxTokens: or(d.Lease.MaxTokens, 0), TTL: or(d.Lease.TTL, ms(1000))}
	}
	if d.Partner != nil {
		p := clone(d.Partner)
		p.Preset = orText(p.Preset, "ietf")
		p.Scope = orText(p.Scope, "dependency")
		if p.Breaker != nil {
			p.Breaker = &BreakerDocument{
				Failures: or(p.Breaker.Failures, 5),
				Window:   or(p.Breaker.Window, ms(30_000)),
				Open:     or(p.Breaker.Open, ms(10_000)),
			}
		}
		d.Partner = &p
	}
	d.Jobs = jobsDefaults(d.Jobs)
	if d.Retention != nil {
		d.Retention = &RetentionDocument{
			Done:    or(d.Retention.Done, Duration(24*time.Hour)),
			DoneMax: or(d.Retention.DoneMax, 10_000),
			Dead:    or(d.Retention.Dead, Duration(720*time.Hour)),
		}
	}
	return d
}

func limitDefaults(l LimitDocument) LimitDocument {
	l.Per = orText(l.Per, bucket.PerDependency)
	if l.Kind != bucket.Concurrency {
		l.Unit = orText(l.Unit, bucket.Requests)
	}
	switch l.Kind {
	case bucket.TokenBucket:
		l.OnExceeded = orText(l.OnExceeded, bucket.Wait)
		if l.Initial == nil {
			l.Initial = l.Capacity
		}
	case bucket.Concurrency:
		l.OnExceeded = orText(l.OnExceeded, bucket.Wait)
		l.MaxHold = or(l.MaxHold, Duration(time.Minute))
	case bucket.Quota:
		l.TimeZone = orText(l.TimeZone, "UTC")
		switch l.Every {
		case bucket.Week:
			l.Weekday = orText(l.Weekday, "monday")
		case bucket.Month:
			l.DayOfMonth = or(l.DayOfMonth, 1)
		case bucket.Minute, bucket.Hour, bucket.Day:
		}
		if l.Every == bucket.Day || l.Every == bucket.Week || l.Every == bucket.Month {
			l.StartsAt = orText(l.StartsAt, "00:00")
		}
		l.OnExceeded = orText(l.OnExceeded, bucket.Reject)
	case bucket.SlidingWindow, bucket.SlidingLog:
		l.OnExceeded = orText(l.OnExceeded, bucket.Reject)
	}
	return l
}

func queueDefaults(given *QueueDocument, limits []LimitDocument) *QueueDocument {
	if given == nil {
		return nil
	}
	q := clone(given)
	q.MaxLength = or(q.MaxLength, 100_000)
	q.MaxLengthPerTenant = or(q.MaxLengthPerTenant, min(10_000, *q.MaxLength))
	q.Overflow = orText(q.Overflow, "reject_new")
	headroom := int64(0)
	for _, l := range limits {
		if l.Kind == bucket.TokenBucket && l.Capacity != nil && *l.Capacity >= 2 {
			headroom = 1
		}
	}
	q.Headroom = or(q.Headroom, headroom)
	q.LookAhead = or(q.LookAhead, ms(100))
	q.LowerTierShare = or(q.LowerTierShare, 0.05)
	q.UseWithin = or(q.UseWithin, ms(30_000))
	return &q
}

func jobsDefaults(given *JobsDocument) *JobsDocument {
	if given == nil {
		return nil
	}
	j := clone(given)
	j.Timeout = or(j.Timeout, ms(30_000))
	j.MaxAttempts = or(j.MaxAttempts, 5)
	j.MaxThrottled = or(j.MaxThrottled, 100)
	b := clone(j.Backoff)
	j.Backoff = &BackoffDocument{
		Initial:    or(b.Initial, ms(1000)),
		Multiplier: or(b.Multiplier, 2),
	}
	j.Backoff.Max = or(b.Max, max(*j.Backoff.Initial, Duration(5*time.Minute)))
	j.Delivery = orText(j.Delivery, "at_least_once")
	if j.NoRetry == nil {
		j.NoRetry = []int64{400, 401, 404, 410, 422}
	}
	return &j
}

func ms(n int64) Duration { return Duration(n) * Duration(time.Millisecond) }

// or is what was given, or the default.
func or[T any](given *T, def T) *T {
	if given != nil {
		return given
	}
	return &def
}

func orText[T ~string](given, def T) T {
	if given != "" {
		return given
	}
	return def
}

// clone is a copy of what was given, or the zero value.
func clone[T any](given *T) (v T) {
	if given != nil {
		v = *given
	}
	return v
}
