package httpapi

import (
	"context"

	"github.com/sluicehq/sluice/admission"
)

// Gate decides. A refusal is a decision; an error means that nothing was decided: admission.FieldError,
// admission.ErrUnknownDependency, ErrUnknownGrant, ErrNotCancellable, ErrGrantEnded, bucket.ErrOverloaded, ErrUnavailable,
// ErrClosed, or a fault, which is answered with 500 and logged.
type Gate interface {
	Admit(ctx context.Context, dependency string, a admission.Ask) (admission.Decision, error)
	// AdmitBatch takes 1 to 1,000 asks, 1 to 64 with allOrNothing, and answers them in their order.
	AdmitBatch(ctx context.Context, dependency string, asks []admission.Ask, allOrNothing bool) ([]admission.Decision, error)
	Grant(ctx context.Context, dependency, id string, op admission.GrantOp) (admission.Settlement, error)
}

// Catalog tells what there is.
type Catalog interface {
	Dependencies(ctx context.Context) ([]admission.Summary, error)
	Dependency(ctx context.Context, name string) (admission.Overview, error)
	// Ready says in words what is not ready; empty: all is.
	Ready(ctx context.Context) []string
}
