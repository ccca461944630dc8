package bucket

import "time"

// Verb is what an Ask wants of the limits.
type Verb uint8

// The verbs.
const (
	// Take admits at once or refuses.
	Take Verb = iota
	// Reserve takes tokens for the first slot at most MaxWait ahead, or refuses.
	Reserve
	// View takes nothing and cannot be refused: it reads the limits.
	View
	// Undo gives back what a Take took whose caller never learned of it. It never fails.
	Undo
	// Settle replaces the estimated costs of a grant by the real ones, once, and releases it.
	Settle
	// Release frees the concurrency that a grant holds.
	Release
	// Extend moves the end of a grant's concurrency to MaxWait from now, at most the limit's Hold.
	Extend
	// Cancel gives back a reservation whose slot has not come.
	Cancel
)

// Ask is one question to the limits of a dependency. The zero value of every field but Set is a plain Take of one
// request.
type Ask struct {
	Set    *Set   // the limits, compiled; for verbs on a grant those of its tenant and class
	Tenant string // whose request; "" is a tenant like any other
	Verb   Verb

	// Costs holds what is asked of each of Set.Units, in that order; nil: 1 of Requests, 0 of others. A cost of 0 leaves
	// the unit's limits alone. For Settle: the real costs.
	Costs []int64
	// Min, if set, lets Take take less of a unit, down to this much, where not all of the cost fits.
	Min []int64

	// ID names the grant: kept in Redis where the policy has a concurrency limit that applies, with SettleWithin, and
	// for Reserve. The verbs on a grant look it up.
	ID string
	// Key, if set, is the hash of an idempotency key in its scope: an admitted answer is remembered under it for KeyTTL
	// together with Fingerprint; the same key with another fingerprint is a Mismatch.
	Key         string
	Fingerprint string
	KeyTTL      time.Duration

	MaxWait      time.Duration // Reserve: how far ahead the slot may lie, at most MaxAhead; Extend: the new hold
	SettleWithin time.Duration // keep a grant that long so that its costs can be settled
	Class        string        // recorded with the grant
	DryRun       bool          // Take and Reserve: answer what would happen, for nothing
	// Stands: a Take that was admitted too late for its caller, who goes all the same, is not undone.
	Stands bool

	slot int64 // Undo: when it was taken, in the dependency's time
}

// Outcome is how an Ask ended.
type Outcome uint8

// The outcomes.
const (
	// Admitted: everything was taken, would be (DryRun), or was done (verbs on a grant).
	Admitted Outcome = iota
	// Refused: some limit lacks room; nothing was taken.
	Refused
	// Mismatch: the idempotency key was used for another ask.
	Mismatch
	// Unknown: no such grant, or no longer.
	Unknown
	// TooLate: the reservation's slot has come, or the grant's end had passed before it was released.
	TooLate
	// Aborted: another item of the all-or-nothing batch was refused.
	Aborted
)

// State is what one limit of the ask's Set holds right after the decision.
type State struct {
	// Remaining is what is left now, in units, never negative.
	Remaining int64
	// Reset is when the limit is untouched again if nobody asks: a bucket full, a window ended. 0 for Concurrency.
	Reset time.Duration
	// Wait is when this ask fits this limit if nobody else asks; 0: it fits now. Unknowable: Forever.
	Wait time.Duration
}

// Forever is the wait for what cannot be foreseen.
const Forever = time.Duration(1<<63 - 1)

// Answer is a decision.
type Answer struct {
	Outcome Outcome
	// Now is the time of the decision on the Redis clock.
	Now time.Time
	// Limits has one entry per limit of the Set, in its order. Nil for verbs on a grant.
	Limits []State
	// Taken is what was taken of each of Set.Units: Costs, or less with Min. For Settle: what was given back, negative
	// where more was charged.
	Taken []int64
	// StartIn is how far ahead the slot of a Reserve lies; 0: now.
	StartIn time.Duration
	// Available is when the ask fits if nobody else asks, a whole number of milliseconds: 1 ms less is refused. Only
	// when Refused.
	Available time.Duration
	// RetryAfter is Available spread over those who were refused together.
	RetryAfter time.Duration
	// BlockedBy indexes the limit with the longest wait; -1: none.
	BlockedBy int
	// ExpiresAt is when the grant's concurrency ends by itself; zero: it holds none.
	ExpiresAt time.Time
	// SettleBy is until when the grant can be settled; zero: it cannot.
	SettleBy time.Time
	// ID is the grant's id; of a replayed answer that of the first.
	ID string
	// Replayed: the answer was remembered under the idempotency key, or the verb was done on the grant before.
	Replayed bool

	slot int64 // the slot in the dependency's time, by which a Take is undone
}
