package httpapi

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/sluicehq/sluice/admission"
	"github.com/sluicehq/sluice/bucket"
)

// The answers once more as structs: what is appended must be what encoding/json makes of them.

type admittedJSON struct {
	Status        int                `json:"status,omitempty"`
	ID            string             `json:"id,omitempty"`
	Outcome       admission.Outcome  `json:"outcome"`
	Source        admission.Source   `json:"source,omitempty"`
	StoreMode     string             `json:"store_mode,omitempty"`
	PolicyVersion int64              `json:"policy_version,omitempty"`
	Limits        []stateJSON        `json:"limits"`
	Taken         map[string]int64   `json:"taken,omitempty"`
	StartAt       *string            `json:"start_at,omitempty"`
	StartInMS     *int64             `json:"start_in_ms,omitempty"`
	Grant         *map[string]string `json:"grant,omitempty"`
	Replayed      bool               `json:"idempotent_replayed,omitempty"`
}

type refusedJSON struct {
	Type          string            `json:"type"`
	Title         string            `json:"title"`
	Status        int               `json:"status"`
	Detail        string            `json:"detail"`
	ID            string            `json:"id,omitempty"`
	Outcome       admission.Outcome `json:"outcome"`
	Reason        admission.Reason  `json:"reason"`
	BlockedBy     string            `json:"blocked_by,omitempty"`
	AvailableIn   *int64            `json:"available_in_ms,omitempty"`
	RetryAfter    *int64            `json:"retry_after_ms,omitempty"`
	Violated      *[]string         `json:"violated-policies,omitempty"`
	Source        admission.Source  `json:"source,omitempty"`
	StoreMode     string            `json:"store_mode,omitempty"`
	PolicyVersion int64             `json:"policy_version,omitempty"`
	Limits        []stateJSON       `json:"limits"`
}

type stateJSON struct {
	Name       string  `json:"name"`
	Kind       string  `json:"kind"`
	Per        string  `json:"per"`
	Unit       string  `json:"unit,omitempty"`
	Limit      int64   `json:"limit"`
	Remaining  int64   `json:"remaining"`
	FullIn     *int64  `json:"full_in_ms,omitempty"`
	WindowEnds *string `json:"window_ends_at,omitempty"`
	Shadow     bool    `json:"shadow,omitempty"`
}

func drawDecision(t *rapid.T) admission.Decision {
	text := rapid.OneOf(rapid.String(), rapid.StringMatching(`[ -~]*`))
	d := admission.Decision{
		ID:            rapid.SampledFrom([]string{"", "adm_0"}).Draw(t, "id"),
		Source:        rapid.SampledFrom([]admission.Source{"", admission.SourceRedis, admission.SourceLocal}).Draw(t, "source"),
		StoreMode:     rapid.SampledFrom([]string{"", "redis", "open", "closed"}).Draw(t, "mode"),
		PolicyVersion: rapid.Int64Range(0, 1<<53).Draw(t, "version"),
		Now:           time.UnixMicro(rapid.Int64Range(1_700_000_000_000_000, 1_900_000_000_000_000).Draw(t, "now")),
		BlockedBy:     rapid.SampledFrom([]string{"", "rate"}).Draw(t, "blocked"),
		Violated:      rapid.SliceOfN(rapid.SampledFrom([]string{"rate", "daily"}), 0, 3).Draw(t, "violated"),
		Taken:         rapid.MapOfN(text, rapid.Int64(), 0, 4).Draw(t, "taken"),
		Available:     time.Duration(rapid.Int64Range(0, 5000).Draw(t, "available")) * time.Millisecond,
		Forever:       rapid.Bool().Draw(t, "forever"),
		Replayed:      rapid.Bool().Draw(t, "replayed"),
		Detail:        text.Draw(t, "detail"),
		Limits:        []admission.LimitState{},
	}
	for range rapid.IntRange(0, 4).Draw(t, "limits") {
		d.Limits = append(d.Limits, admission.LimitState{
			Limit: &bucket.Limit{
				Name: rapid.SampledFrom([]string{"rate", "in-flight", "daily"}).Draw(t, "name"),
				Kind: rapid.SampledFrom([]bucket.Kind{
					bucket.TokenBucket, bucket.Concurrency, bucket.Quota, bucket.SlidingWindow, bucket.SlidingLog,
				}).Draw(t, "kind"),
				Per:    rapid.SampledFrom([]bucket.Per{"", bucket.PerTenant}).Draw(t, "per"),
				Unit:   rapid.SampledFrom([]string{"", "requests", "llm_tokens"}).Draw(t, "unit"),
				Shadow: rapid.Bool().Draw(t, "shadow"), Size: rapid.Int64Range(1, 1<<52).Draw(t, "size"),
			},
			Remaining: rapid.Int64Range(0, 1<<52).Draw(t, "remaining"),
			Reset: rapid.OneOf(rapid.Just(bucket.Forever), rapid.Map(rapid.Int64Range(0, 1<<40),
				func(us int64) time.Duration { return time.Duration(us) * time.Microsecond })).Draw(t, "reset"),
		})
	}
	if rapid.Bool().Draw(t, "reserved") {
		d.StartIn = time.Duration(rapid.Int64Range(0, 60_000_000).Draw(t, "start")) * time.Microsecond
		d.StartAt = d.Now.Add(d.StartIn)
	}
	if rapid.Bool().Draw(t, "granted") {
		d.Grant = &admission.Grant{}
		if rapid.Bool().Draw(t, "holds") {
			d.Grant.ExpiresAt = d.Now.Add(time.Minute)
		}
		if rapid.Bool().Draw(t, "settles") {
			d.Grant.SettleBy = d.Now.Add(time.Hour)
		}
	}
	return d
}

func stamp(t time.Time) *string {
	s := t.UTC().Format("2006-01-02T15:04:05.000Z07:00")
	return &s
}

func statesOf(d *admission.Decision) []stateJSON {
	out := []stateJSON{}
	for _, s := range d.Limits {
		j := stateJSON{
			Name: s.Limit.Name, Kind: string(s.Limit.Kind), Per: string(s.Limit.Per), Unit: s.Limit.Unit, Limit: s.Limit.Size,
			Remaining: s.Remaining, Shadow: s.Limit.Shadow,
		}
		if j.Per == "" {
			j.Per = "dependency"
		}
		if j.Unit == "" {
			j.Unit = "requests"
		}
		switch {
		case s.Limit.Kind == bucket.Concurrency:
			j.Unit = ""
		case s.Reset == bucket.Forever:
		case s.Limit.Kind == bucket.Quota:
			j.WindowEnds = stamp(d.Now.Add(s.Reset))
		default:
			ms := (s.Reset + time.Millisecond - 1).Milliseconds()
			j.FullIn = &ms
		}
		out = append(out, j)
	}
	return out
}

func TestAppendAdmitted_asEncodingJSON(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		d := drawDecision(t)
		item := rapid.Bool().Draw(t, "item")
		want := admittedJSON{
			ID: d.ID, Outcome: "admitted", Source: d.Source, StoreMode: d.StoreMode, PolicyVersion: d.PolicyVersion,
			Limits: statesOf(&d), Taken: d.Taken,
		}
		if item {
			want.Status, want.Replayed = 200, d.Replayed
		}
		if want.StoreMode == "redis" {
			want.StoreMode = ""
		}
		if !d.StartAt.IsZero() {
			ms := (d.StartIn + time.Millisecond - 1).Milliseconds()
			want.StartInMS, want.StartAt = &ms, stamp(d.StartAt.Add(time.Millisecond-1))
		}
		if d.Grant != nil {
			want.Grant = &map[string]string{}
			if !d.Grant.ExpiresAt.IsZero() {
				(*want.Grant)["expires_at"] = *stamp(d.Grant.ExpiresAt)
			}
			if !d.Grant.SettleBy.IsZero() {
				(*want.Grant)["settle_by"] = *stamp(d.Grant.SettleBy)
			}
		}
		raw, err := json.Marshal(want)
		require.NoError(t, err)
		require.Equal(t, string(raw), string(appendAdmitted(nil, &d, item)))
	})
}

func TestAppendRefused_asEncodingJSON(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		d := drawDecision(t)
		d.Reason = rapid.SampledFrom([]admission.Reason{
			admission.ReasonLimit, admission.ReasonQuota, admission.ReasonCostExceeds, admission.ReasonStoreUnavailable,
		}).Draw(t, "reason")
		r := forReason(table(), d.Reason)
		retry := time.Duration(rapid.Int64Range(1, 1<<40).Draw(t, "retry"))
		want := refusedJSON{
			Type: string(r.kind), Title: r.title(), Status: r.status, Detail: d.Detail, ID: d.ID, Outcome: "rejected",
			Reason: d.Reason, BlockedBy: d.BlockedBy, Source: d.Source, StoreMode: d.StoreMode, PolicyVersion: d.PolicyVersion,
			Limits: statesOf(&d),
		}
		if want.Detail == "" {
			want.Detail = r.detail
		}
		if want.StoreMode == "redis" {
			want.StoreMode = ""
		}
		violated := append([]string{}, d.Violated...)
		if d.Reason != admission.ReasonCostExceeds || len(violated) > 0 {
			want.Violated = &violated
		}
		if d.Reason != admission.ReasonCostExceeds {
			ms := (retry + time.Millisecond - 1).Milliseconds()
			want.RetryAfter = &ms
			if available := d.Available.Milliseconds(); available > 0 && !d.Forever {
				want.AvailableIn = &available
			}
		}
		raw, err := json.Marshal(want)
		require.NoError(t, err)
		require.Equal(t, string(raw), string(appendRefused(nil, r, &d, retry))+"}")
	})
}

func TestAppendString_asEncodingJSON(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.OneOf(rapid.String(), rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) }),
			rapid.StringMatching(`[ -~]*`), rapid.SampledFrom([]string{"<&>", "\u2028", "a\x00b", `"\`})).Draw(t, "s")
		raw, err := json.Marshal(s)
		require.NoError(t, err)
		require.Equal(t, string(raw), string(appendString(nil, s)))
	})
}
