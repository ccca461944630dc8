package admission

import "errors"

// Errors of the gate that say something is wrong with what was asked for. A refusal is a Decision and never one of these;
// trouble with the store is bucket.ErrUnavailable, too much at once bucket.ErrOverloaded.
var (
	// ErrUnknownDependency: no policy is known for the name.
	ErrUnknownDependency = errors.New("admission: unknown dependency")
	// ErrUnknownGrant: the dependency has no such grant or reservation, or no longer.
	ErrUnknownGrant = errors.New("admission: unknown grant")
	// ErrNotCancellable: the reservation's slot has come, so its tokens are spent.
	ErrNotCancellable = errors.New("admission: not cancellable")
	// ErrGrantEnded: the grant has ended, by itself or because it was settled or cancelled, so it can be neither extended
	// nor settled; the costs that it was admitted with stand.
	ErrGrantEnded = errors.New("admission: grant ended")
)

// FieldError says which field of an ask is wrong and what would be right. Nothing was decided.
type FieldError struct {
	// Field is the path as the API spells it: "costs.llm_tokens", of a batch "items[3].costs.llm_tokens".
	Field string
	// Message ends the sentence that Field begins: "must be a whole number from 0 to 100".
	Message string
}

// Error gives the field and the message.
func (e *FieldError) Error() string {
	if e.Field == "" {
		return e.Message
	}
	return e.Field + ": " + e.Message
}
