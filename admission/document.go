package admission

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/sluicehq/sluice/bucket"
)

// Document is a policy file as data: what was written, with nothing filled in. Fields that were left out are nil or
// empty. It is also how policies are edited and compared; Compile makes the Policy that decides.
type Document struct {
	// ManagedBy is "file" (default: the file is the truth) or "review" (the file only seeds).
	ManagedBy    string                        `json:"managed_by,omitempty"`
	Dependencies map[string]DependencyDocument `json:"dependencies"`
	Callbacks    *CallbacksDocument            `json:"callbacks,omitempty"`
}

// CallbacksDocument says how callbacks are signed and where they may go. It belongs to the process, not to a
// dependency, so no stored version ever has it.
type CallbacksDocument struct {
	// Secrets sign callbacks: a literal, env:NAME or file:PATH. They are read from YAML and never written anywhere.
	Secrets    []Secret `json:"-" yaml:"secrets"`
	AllowHosts []string `json:"allow_hosts,omitempty"`
}

// Secret is text that shows itself to nobody who merely prints it.
type Secret string

// String hides the secret.
func (Secret) String() string { return "[secret]" }

// GoString hides the secret.
func (Secret) GoString() string { return "[secret]" }

// MarshalText hides the secret.
func (Secret) MarshalText() ([]byte, error) { return []byte("[secret]"), nil }

// DependencyDocument is everything configured for one dependency. Its JSON form is what a stored version holds.
type DependencyDocument struct {
	Description string   `json:"description,omitempty"`
	Owners      []string `json:"owners,omitempty"`
	Consumers   []string `json:"consumers,omitempty"`
	// Unlimited must be said by a policy without limits: nothing is then ever refused.
	Unlimited bool                      `json:"unlimited,omitempty"`
	Limits    []LimitDocument           `json:"limits,omitempty"`
	Queue     *QueueDocument            `json:"queue,omitempty"`
	Classes   map[string]ClassDocument  `json:"classes,omitempty"` // class "default" always exists
	Plans     map[string]PlanDocument   `json:"plans,omitempty"`
	Tenants   map[string]TenantDocument `json:"tenants,omitempty"`
	Store     *StoreDocument            `json:"store,omitempty"`
	Lease     *LeaseDocument            `json:"lease,omitempty"`
	Partner   *PartnerDocument          `json:"partner,omitempty"`
	Jobs      *JobsDocument             `json:"jobs,omitempty"`
	Retention *RetentionDocument        `json:"retention,omitempty"`
	// IdempotencyTTL is how long an admitted answer is repeated to the same key, 1s to 168h, default 10m.
	IdempotencyTTL *Duration `json:"idempotency_ttl,omitempty"`
	// SettleWithin is how long a grant can be settled, 1s to 24h, default 10m.
	SettleWithin *Duration `json:"settle_within,omitempty"`
}

// LimitDocument is one limit. Kind says which of the fields after OnExceeded belong to it.
type LimitDocument struct {
	Name       string            `json:"name"`
	Kind       bucket.Kind       `json:"kind"`
	Per        bucket.Per        `json:"per,omitempty"`     // default dependency
	Classes    []string          `json:"classes,omitempty"` // default all
	Unit       string            `json:"unit,omitempty"`    // default requests; not for concurrency
	Shadow     bool              `json:"shadow,omitempty"`
	OnExceeded bucket.OnExceeded `json:"on_exceeded,omitempty"` // default queue for token_bucket and concurrency, else reject

	Capacity *int64       `json:"capacity,omitempty"` // token_bucket, 1 to 2^52
	Refill   *bucket.Rate `json:"refill,omitempty"`   // token_bucket
	Initial  *int64       `json:"initial,omitempty"`  // token_bucket, 0 to capacity, default capacity
	Oversize string       `json:"oversize,omitempty"` // token_bucket: "debt", or nothing

	Max     *int64    `json:"max,omitempty"`      // concurrency, 1 to 2^40
	MaxHold *Duration `json:"max_hold,omitempty"` // concurrency, 10ms to 24h, default 1m

	Limit      *int64        `json:"limit,omitempty"`        // quota, sliding_window: 1 to 2^40; sliding_log: 1 to 1000
	Every      bucket.Period `json:"every,omitempty"`        // quota: minute, hour, day, week or month
	TimeZone   string        `json:"time_zone,omitempty"`    // quota: IANA name, default UTC
	StartsAt   string        `json:"starts_at,omitempty"`    // quota every day, week or month: HH:MM, default 00:00
	Weekday    string        `json:"weekday,omitempty"`      // quota every week, default monday
	DayOfMonth *int64        `json:"day_of_month,omitempty"` // quota every month, 1 to 31, default 1

	Window *Duration `json:"window,omitempty"` // sliding_window, sliding_log: 100ms to 8784h in whole milliseconds
}

// OverrideDocument changes parameters of one limit for some tenants. What changes how the state runs (refill, window,
// calendar) is allowed only where the limit is per tenant or tenant_class, since other state is shared; sizes always.
type OverrideDocument struct {
	Capacity   *int64       `json:"capacity,omitempty"`
	Refill     *bucket.Rate `json:"refill,omitempty"`
	Max        *int64       `json:"max,omitempty"`
	MaxHold    *Duration    `json:"max_hold,omitempty"`
	Limit      *int64       `json:"limit,omitempty"`
	TimeZone   string       `json:"time_zone,omitempty"`
	StartsAt   string       `json:"starts_at,omitempty"`
	Weekday    string       `json:"weekday,omitempty"`
	DayOfMonth *int64       `json:"day_of_month,omitempty"`
	Window     *Duration    `json:"window,omitempty"`
}

// QueueDocument says how many may wait and how.
type QueueDocument struct {
	MaxLength          *int64    `json:"max_length,omitempty"`            // 1 to 10^8, default 100000
	MaxLengthPerTenant *int64    `json:"max_length_per_tenant,omitempty"` // default 10000, at most max_length
	Overflow           string    `json:"overflow,omitempty"`              // reject_new (default) or drop_oldest
	Headroom           *int64    `json:"headroom,omitempty"`              // default 1 where a capacity is at least 2
	LookAhead          *Duration `json:"look_ahead,omitempty"`            // 0s to 1s, default 100ms
	LowerTierShare     *float64  `json:"lower_tier_share,omitempty"`      // 0 to 0.5, default 0.05
	UseWithin          *Duration `json:"use_within,omitempty"`            // 1s to 1h, default 30s
	MaxAge             *Duration `json:"max_age,omitempty"`               // 1s to 8784h, unset: no end
}

// ClassDocument is one class of work.
type ClassDocument struct {
	Tier   *int64 `json:"tier,omitempty"`   // 0 to 9, lower goes first, default 1
	Weight *int64 `json:"weight,omitempty"` // 1 to 10000, default 1
}

// PlanDocument is a named set of overrides that tenants share.
type PlanDocument struct {
	Weight *int64                      `json:"weight,omitempty"` // 1 to 10000, default 1
	Limits map[string]OverrideDocument `json:"limits,omitempty"` // by name of the limit
}

// TenantDocument is what holds for one tenant; its own limits and weight go before those of its plan.
type TenantDocument struct {
	Plan   string                      `json:"plan,omitempty"`
	Weight *int64                      `json:"weight,omitempty"`
	Limits map[string]OverrideDocument `json:"limits,omitempty"`
}

// StoreDocument says what happens when Redis is slow or away.
type StoreDocument struct {
	Timeout     *Duration   `json:"timeout,omitempty"`      // 1ms to 10s, default 10ms
	OnFailure   FailureMode `json:"on_failure,omitempty"`   // local, open or closed (default)
	MinReplicas *int64      `json:"min_replicas,omitempty"` // 0 to 10000, default 0
}

// FailureMode is how asks are answered while the store does not.
type FailureMode string

// The failure modes.
const (
	// FailLocal: each process answers from its share of the limits.
	FailLocal FailureMode = "local"
	// FailOpen admits.
	FailOpen FailureMode = "open"
	// FailClosed refuses.
	FailClosed FailureMode = "closed"
)

// LeaseDocument bounds the tokens that a replica may hold in memory.
type LeaseDocument struct {
	MaxTokens *int64    `json:"max_tokens,omitempty"` // 0 to 2^40, default 0: no leases
	TTL       *Duration `json:"ttl,omitempty"`        // 100ms to 1m, default 1s
}

// PartnerDocument says how the dependency's own answers are read.
type PartnerDocument struct {
	Preset  string           `json:"preset,omitempty"` // default ietf
	Scope   string           `json:"scope,omitempty"`  // what a throttle answer pauses: dependency (default) or tenant
	Headers *HeadersDocument `json:"headers,omitempty"`
	Breaker *BreakerDocument `json:"breaker,omitempty"`
}

// HeadersDocument names the headers that preset generic reads.
type HeadersDocument struct {
	Limit     string `json:"limit,omitempty"`
	Remaining string `json:"remaining,omitempty"`
	Used      string `json:"used,omitempty"`
	Reset     string `json:"reset,omitempty"`
	// ResetKind is delta_seconds, delta_ms, epoch_s, epoch_ms, rfc3339, http_date or go_duration; default: told by size.
	ResetKind string `json:"reset_kind,omitempty"`
}

// BreakerDocument pauses a dependency that fails.
type BreakerDocument struct {
	Failures *int64    `json:"failures,omitempty"` // 1 to 10^6, default 5
	Window   *Duration `json:"window,omitempty"`   // 1s to 1h, default 30s
	Open     *Duration `json:"open,omitempty"`     // 100ms to 1h, default 10s
}

// JobsDocument says how handed-over requests are made.
type JobsDocument struct {
	Timeout      *Duration        `json:"timeout,omitempty"`       // 10ms to 1h, default 30s
	MaxAttempts  *int64           `json:"max_attempts,omitempty"`  // 1 to 1000, default 5
	MaxThrottled *int64           `json:"max_throttled,omitempty"` // 1 to 10^6, default 100
	Backoff      *BackoffDocument `json:"backoff,omitempty"`
	Delivery     string           `json:"delivery,omitempty"` // at_least_once (default) or at_most_once
	NoRetry      []int64          `json:"no_retry,omitzero"`  // default 400, 401, 404, 410, 422; []: retry all
	AllowHosts   []string         `json:"allow_hosts,omitempty"`
}

// BackoffDocument spaces the attempts of a job.
type BackoffDocument struct {
	Initial    *Duration `json:"initial,omitempty"`    // 1ms to 24h, default 1s
	Multiplier *float64  `json:"multiplier,omitempty"` // 1 to 100, default 2
	Max        *Duration `json:"max,omitempty"`        // initial to 24h, default 5m
}

// RetentionDocument says how long ended tickets are kept.
type RetentionDocument struct {
	Done    *Duration `json:"done,omitempty"`     // 0s to 8784h, default 24h
	DoneMax *int64    `json:"done_max,omitempty"` // 0 to 10^8, default 10000
	Dead    *Duration `json:"dead,omitempty"`     // 1s to 8784h, default 720h
}

// Canonical is the document as it is stored and compared: JSON with sorted keys and every duration and rate in its one
// shortest form.
func (d DependencyDocument) Canonical() ([]byte, error) {
	text, err := json.Marshal(d)
	if err != nil {
		return nil, fmt.Errorf("write policy document: %w", err)
	}
	return text, nil
}

// Duration is a time.Duration that is written as text: "250ms", "30s", "1m30s", "720h".
type Duration time.Duration

// Std is the duration as the standard library has it.
func (d Duration) Std() time.Duration { return time.Duration(d) }

// String writes the duration without units that are zero: 1h, not 1h0m0s.
func (d Duration) String() string {
	s := time.Duration(d).String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// MarshalText writes the duration as String does.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads what time.ParseDuration reads.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil {
		shown := string(text)
		if len(shown) > 64 {
			shown = shown[:64] + "..."
		}
		return fmt.Errorf(`duration %q: allowed are numbers with ns, us, ms, s, m or h, such as "250ms", "30s" or "1h30m"`, shown)
	}
	*d = Duration(v)
	return nil
}
