package admission

import (
	"time"

	"github.com/sluicehq/sluice/bucket"
)

// Mode is what happens to an ask that does not fit now.
type Mode string

// The modes in force.
const (
	// ModeReject refuses it.
	ModeReject Mode = "reject"
	// ModeReserve takes tokens for a slot at most Wait ahead, or refuses it.
	ModeReserve Mode = "reserve"
)

// Ask is one request for admission to a dependency.
type Ask struct {
	Tenant string           // any UTF-8 up to 256 bytes; "" counts as a tenant of that name
	Class  string           // one of the policy's classes; "" means "default"
	Costs  map[string]int64 // per unit; nil: 1 of requests. A unit that no limit of the policy counts is an error
	// MinCosts, per unit, allows the answer to take less than Costs, down to this much. Mode reject only.
	MinCosts map[string]int64
	Mode     Mode          // "" means ModeReject
	Wait     time.Duration // ModeReserve: how far ahead the slot may lie, up to a minute
	// SettleLater keeps a grant by which the real costs can be booked within the policy's settle_within.
	SettleLater bool
	DryRun      bool // answer what would happen, take nothing
	// IdempotencyKey, 1 to 255 visible ASCII characters, makes an admitted answer repeatable.
	IdempotencyKey string
	APIKeyID       string // scope of the idempotency key; empty until rights exist
}

// Outcome is the word a decision is reported by.
type Outcome string

// The outcomes of an ask.
const (
	OutcomeAdmitted Outcome = "admitted"
	OutcomeRejected Outcome = "rejected"
)

// Reason says why an ask was rejected. The set is closed; it is a metric label and part of the API.
type Reason string

// The reasons of the gate.
const (
	ReasonNone             Reason = ""
	ReasonLimit            Reason = "limit" // bucket, concurrency, sliding
	ReasonQuota            Reason = "quota" // the limit with the longest wait is a calendar quota
	ReasonCostExceeds      Reason = "cost_exceeds_capacity"
	ReasonMismatch         Reason = "idempotency_mismatch"
	ReasonStoreUnavailable Reason = "store_unavailable"
	ReasonOverloaded       Reason = "overloaded"
	ReasonShuttingDown     Reason = "shutting_down"
	// ReasonBatch: the item itself fits, another of its all-or-nothing batch does not.
	ReasonBatch             Reason = "batch"
	ReasonInvalid           Reason = "invalid"
	ReasonUnknownDependency Reason = "unknown_dependency"
	ReasonNotCancellable    Reason = "not_cancellable"
)

// Source says what an answer was decided by.
type Source string

// The sources in force.
const (
	SourceRedis Source = "redis"
	// SourceLocal: the store did not answer in time; the policy's store.on_failure decided.
	SourceLocal Source = "local"
)

// Decision answers an Ask. A refusal is a Decision, never an error.
type Decision struct {
	ID            string // adm_ and 20 characters; of an idempotent repeat the first one's
	Outcome       Outcome
	Reason        Reason // ReasonNone when admitted
	Source        Source
	StoreMode     string // "redis", "open" or "closed": how the answer came about
	PolicyVersion int64
	Now           time.Time // on the Redis clock
	Limits        []LimitState
	BlockedBy     string           // the limit with the longest wait; only for ReasonLimit and ReasonQuota
	Violated      []string         // every limit that refuses, in the policy's order; shadow limits are not among them
	Taken         map[string]int64 // what was taken per unit; only where the ask had MinCosts
	StartIn       time.Duration    // ModeReserve: how far ahead the slot lies
	StartAt       time.Time        // ModeReserve: the slot, zero otherwise
	Available     time.Duration    // when it fits if nobody else asks, whole milliseconds; 0 unless rejected by limits
	// RetryAfter is Available spread over those refused together; for the 503 reasons a second and jitter. 0: never.
	RetryAfter time.Duration
	// Forever is set where Available cannot be foreseen; RetryAfter is then a guess.
	Forever  bool
	Grant    *Grant
	Replayed bool   // answered from an idempotency record
	Detail   string // one sentence for a person
}

// LimitState is one limit as a decision left it.
type LimitState struct {
	Limit     *bucket.Limit // name, kind, per, unit, size
	Remaining int64
	Reset     time.Duration // until untouched again; for a quota until its window ends
	Wait      time.Duration // until this ask fits this limit; 0: now; bucket.Forever: unknowable
	// Pressed reports whether the ask was counted by this limit at all: a cost of 0 leaves it alone.
	Pressed bool
}

// Grant is what an admitted ask holds.
type Grant struct {
	ExpiresAt time.Time // when its concurrency ends by itself; zero: none held
	SettleBy  time.Time // until when its costs can be settled; zero: not at all
}

// Settlement answers Settle, Release, Extend and Cancel.
type Settlement struct {
	ID        string
	Now       time.Time
	Replayed  bool             // settled before: the same answer again
	Returned  map[string]int64 // Settle: per unit what was given back, negative where more was charged
	ExpiresAt time.Time        // Extend: the new end
	Late      bool             // Release: the grant had ended by itself before
}
