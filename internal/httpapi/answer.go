package httpapi

import (
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/sluicehq/sluice/admission"
	"github.com/sluicehq/sluice/bucket"
)

// storeModeNormal is left out of answers: nothing is special about it.
const storeModeNormal = "redis"

// appendAdmitted appends the body of an admitted answer. As an item of a batch it also has a status, and says itself what
// a header says of a single answer.
func appendAdmitted(b []byte, d *admission.Decision, item bool) []byte {
	b = append(b, '{')
	if item {
		b = appendNumber(b, "status", 200)
	}
	if d.ID != "" {
		b = appendText(b, "id", d.ID)
	}
	b = appendText(b, "outcome", string(admission.OutcomeAdmitted))
	b = appendOrigin(b, d)
	b = appendLimits(b, d)
	if len(d.Taken) > 0 {
		b = appendCosts(b, "taken", d.Taken)
	}
	if !d.StartAt.IsZero() {
		b = appendTime(b, "start_at", ceilInstant(d.StartAt))
		b = appendNumber(b, "start_in_ms", ceilMS(d.StartIn))
	}
	if d.Grant != nil {
		b = append(appendMember(b, "grant"), '{')
		if !d.Grant.ExpiresAt.IsZero() {
			b = appendTime(b, "expires_at", d.Grant.ExpiresAt)
		}
		if !d.Grant.SettleBy.IsZero() {
			b = appendTime(b, "settle_by", d.Grant.SettleBy)
		}
		b = append(b, '}')
	}
	if item && d.Replayed {
		b = append(appendMember(b, "idempotent_replayed"), "true"...)
	}
	return append(b, '}')
}

// appendRefused appends the problem of a refusal without its last brace, so that a batch can add its items.
func appendRefused(b []byte, r *row, d *admission.Decision, retry time.Duration) []byte {
	detail := d.Detail
	if detail == "" {
		detail = r.detail
	}
	b = appendProblem(b, r, detail)
	if d.ID != "" {
		b = appendText(b, "id", d.ID)
	}
	b = appendText(b, "outcome", string(admission.OutcomeRejected))
	b = appendText(b, "reason", string(d.Reason))
	if d.BlockedBy != "" {
		b = appendText(b, "blocked_by", d.BlockedBy)
	}
	if r.later && d.Available > 0 && !d.Forever {
		b = appendNumber(b, "available_in_ms", ceilMS(d.Available))
	}
	if r.later {
		b = appendNumber(b, "retry_after_ms", ceilMS(retry))
	}
	if r.kind != typeBlank || len(d.Violated) > 0 {
		b = appendStrings(b, "violated-policies", d.Violated)
	}
	b = appendOrigin(b, d)
	return appendLimits(b, d)
}

// appendProblem begins a problem, RFC 9457 section 3.1.
func appendProblem(b []byte, r *row, detail string) []byte {
	b = append(b, '{')
	b = appendText(b, "type", string(r.kind))
	b = appendText(b, "title", r.title())
	b = appendNumber(b, "status", int64(r.status))
	return appendText(b, "detail", detail)
}

// appendOrigin appends what the decision was made by.
func appendOrigin(b []byte, d *admission.Decision) []byte {
	if d.Source != "" {
		b = appendText(b, "source", string(d.Source))
	}
	if d.StoreMode != "" && d.StoreMode != storeModeNormal {
		b = appendText(b, "store_mode", d.StoreMode)
	}
	if d.PolicyVersion != 0 {
		b = appendNumber(b, "policy_version", d.PolicyVersion)
	}
	return b
}

func appendLimits(b []byte, d *admission.Decision) []byte {
	b = append(appendMember(b, "limits"), '[')
	for i := range d.Limits {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendLimit(b, &d.Limits[i], d.Now)
	}
	return append(b, ']')
}

func appendLimit(b []byte, s *admission.LimitState, now time.Time) []byte {
	l := s.Limit
	b = append(b, '{')
	b = appendText(b, "name", l.Name)
	b = appendText(b, "kind", string(l.Kind))
	b = appendText(b, "per", string(perOf(l)))
	if l.Kind != bucket.Concurrency {
		b = appendText(b, "unit", unitOf(l))
	}
	b = appendNumber(b, "limit", l.Size)
	b = appendNumber(b, "remaining", s.Remaining)
	switch {
	case l.Kind == bucket.Concurrency || s.Reset == bucket.Forever:
	case l.Kind == bucket.Quota:
		b = appendTime(b, "window_ends_at", now.Add(s.Reset))
	default:
		b = appendNumber(b, "full_in_ms", ceilMS(s.Reset))
	}
	if l.Shadow {
		b = append(appendMember(b, "shadow"), "true"...)
	}
	return append(b, '}')
}

// appendCosts appends costs by unit, sorted.
func appendCosts(b []byte, name string, costs map[string]int64) []byte {
	b = append(appendMember(b, name), '{')
	for i, unit := range slices.Sorted(maps.Keys(costs)) {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(appendString(b, unit), ':')
		b = strconv.AppendInt(b, costs[unit], 10)
	}
	return append(b, '}')
}

// ceilInstant rounds up to milliseconds: who waits until then is never early.
func ceilInstant(t time.Time) time.Time {
	if down := t.Truncate(time.Millisecond); !down.Equal(t) {
		return down.Add(time.Millisecond)
	}
	return t
}

func perOf(l *bucket.Limit) bucket.Per {
	if l.Per == "" {
		return bucket.PerDependency
	}
	return l.Per
}

func unitOf(l *bucket.Limit) string {
	if l.Unit == "" {
		return bucket.Requests
	}
	return l.Unit
}
