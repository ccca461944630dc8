package admission

import (
	"time"

	"github.com/sluicehq/sluice/bucket"
)

// GrantVerb is what is to be done with a grant or a reservation.
type GrantVerb string

// The verbs on a grant.
const (
	// GrantSettle books the real costs instead of the estimated ones, once, and releases the grant.
	GrantSettle GrantVerb = "settle"
	// GrantRelease frees the concurrency that the grant holds; its costs stand.
	GrantRelease GrantVerb = "release"
	// GrantExtend moves the end of the grant's concurrency to Hold from now, at most the limit's max_hold.
	GrantExtend GrantVerb = "extend"
	// GrantCancel gives back everything that a reservation took whose slot has not come.
	GrantCancel GrantVerb = "cancel"
)

// GrantOp is one operation on a grant.
type GrantOp struct {
	Verb  GrantVerb
	Costs map[string]int64 // GrantSettle: the real costs per unit; a unit left out keeps its estimate
	Hold  time.Duration    // GrantExtend: from now
}

// Summary names a dependency in a list.
type Summary struct {
	Name        string
	Description string
	Version     int64 // of the policy in force
	Owners      []string
}

// Overview is a dependency as it stands now.
type Overview struct {
	Summary
	Now     time.Time // on the Redis clock
	Classes []string  // sorted; "default" is always among them
	// Limits lists every limit of the policy in its order, with the policy's own parameters: no plan, no override.
	Limits []*bucket.Limit
	// States lists what is left of the limits that are per dependency, in the same order. Empty while the store does
	// not answer.
	States    []LimitState
	StoreMode string // "redis", "open" or "closed"
}
