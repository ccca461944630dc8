package httpapi

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/sluicehq/sluice/admission"
	"github.com/sluicehq/sluice/bucket"
)

// Reasons that go with admission.ErrUnknownGrant and ErrGrantEnded; no ask is ever rejected for them.
const (
	reasonUnknownTicket admission.Reason = "unknown_ticket"
	reasonGrantEnded    admission.Reason = "grant_ended"
)

// What HTTP itself can be done wrong. These problems have no reason: the status says it all.
var (
	errNoRoute      = errors.New("nothing is served under this path; see /openapi.yaml")
	errMethod       = errors.New("this path does not take this method; see the header Allow")
	errTooSlow      = errors.New("the body did not arrive in time; send it again at once")
	errBroken       = errors.New("the body ended before it was complete")
	errTooLarge     = errors.New("the body is too large: at most 64 KiB for one ask, 4 MiB for a batch")
	errMediaType    = errors.New("the body must be JSON: send Content-Type: application/json without a Content-Encoding")
	errShuttingDown = errors.New("this broker is shutting down; ask another one")
	errBusy         = errors.New("too many asks at once; come again")
)

// problemType is the type of a problem, RFC 9457 section 3.1.1.
type problemType string

const (
	// typeBlank says no more than the status does; its title is the status's phrase.
	typeBlank problemType = "about:blank"
	// typeQuota and typeReduced are registered by draft-ietf-httpapi-ratelimit-headers-11; both name the limits that
	// refuse in violated-policies.
	typeQuota   problemType = "https://iana.org/assignments/http-problem-types#quota-exceeded"
	typeReduced problemType = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
)

// row is one line of the table that maps reasons and errors to HTTP.
type row struct {
	reason admission.Reason // ReasonNone: a problem of HTTP itself
	errs   []error          // the errors that mean it
	status int
	kind   problemType
	detail string // for a person, where the decision or the error has no sentence of its own
	later  bool   // the same ask may go later: there is a Retry-After
}

// title is what the type is called.
func (r *row) title() string {
	switch r.kind {
	case typeQuota:
		return "Quota Exceeded"
	case typeReduced:
		return "Temporary Reduced Capacity"
	case typeBlank:
	}
	return http.StatusText(r.status)
}

// table is the one place that knows which status goes with which reason or error, FORMATS 1. The last row is for
// everything that nobody foresaw.
func table() []row {
	return []row{
		{reason: admission.ReasonLimit, status: http.StatusTooManyRequests, kind: typeQuota, later: true, detail: "A limit has no room for this ask now."},
		{reason: admission.ReasonQuota, status: http.StatusTooManyRequests, kind: typeQuota, later: true, detail: "A quota is used up for its window."},
		{reason: admission.ReasonCostExceeds, status: http.StatusUnprocessableEntity, kind: typeBlank, detail: "The cost can never fit: it is over the capacity of a limit."},
		{reason: admission.ReasonMismatch, status: http.StatusUnprocessableEntity, kind: typeBlank, detail: "The idempotency key was used for another ask."},
		{reason: admission.ReasonBatch, status: http.StatusFailedDependency, kind: typeBlank, detail: "The item fits, another of its batch does not."},
		{
			reason: admission.ReasonStoreUnavailable, errs: []error{bucket.ErrUnavailable, context.DeadlineExceeded},
			status: http.StatusServiceUnavailable, kind: typeReduced, later: true, detail: "The store does not answer.",
		},
		{
			reason: admission.ReasonOverloaded, errs: []error{bucket.ErrOverloaded, errBusy},
			status: http.StatusServiceUnavailable, kind: typeReduced, later: true, detail: "Too many asks at once.",
		},
		{
			reason: admission.ReasonShuttingDown, errs: []error{errShuttingDown, bucket.ErrClosed, context.Canceled},
			status: http.StatusServiceUnavailable, kind: typeReduced, later: true, detail: "This broker is shutting down; ask another one.",
		},
		{reason: admission.ReasonInvalid, status: http.StatusBadRequest, kind: typeBlank, detail: "The ask is invalid."},
		{
			reason: admission.ReasonUnknownDependency, errs: []error{admission.ErrUnknownDependency},
			status: http.StatusNotFound, kind: typeBlank, detail: "No policy is known for this dependency; GET /v1/dependencies lists them.",
		},
		{
			reason: reasonUnknownTicket, errs: []error{admission.ErrUnknownGrant},
			status: http.StatusNotFound, kind: typeBlank, detail: "There is no such grant or reservation, or no longer.",
		},
		{
			reason: admission.ReasonNotCancellable, errs: []error{admission.ErrNotCancellable},
			status: http.StatusConflict, kind: typeBlank, detail: "Only a reservation whose slot lies ahead can be cancelled. Settle what was admitted and not used.",
		},
		{
			reason: reasonGrantEnded, errs: []error{admission.ErrGrantEnded},
			status: http.StatusConflict, kind: typeBlank, detail: "The grant has ended; the costs that it was admitted with stand.",
		},
		{errs: []error{errNoRoute}, status: http.StatusNotFound, kind: typeBlank},
		{errs: []error{errMethod}, status: http.StatusMethodNotAllowed, kind: typeBlank},
		{errs: []error{errTooSlow}, status: http.StatusRequestTimeout, kind: typeBlank},
		{errs: []error{errBroken}, status: http.StatusBadRequest, kind: typeBlank},
		{errs: []error{errTooLarge}, status: http.StatusRequestEntityTooLarge, kind: typeBlank},
		{errs: []error{errMediaType}, status: http.StatusUnsupportedMediaType, kind: typeBlank},
		{status: http.StatusInternalServerError, kind: typeBlank, detail: "Something went wrong that is not your fault; the log of the broker has it."},
	}
}

// forReason finds the row of a refusal.
func forReason(rows []row, reason admission.Reason) *row {
	for i := range rows {
		if rows[i].reason == reason && reason != admission.ReasonNone {
			return &rows[i]
		}
	}
	return &rows[len(rows)-1]
}

// forError finds the row of an error, the field that it is about, and the sentence to show. The texts of errors from
// elsewhere may hold what is nobody's business and are not shown.
func forError(rows []row, err error) (r *row, field, detail string) {
	if wrong, ok := errors.AsType[*admission.FieldError](err); ok {
		r = forReason(rows, admission.ReasonInvalid)
		return r, wrong.Field, sentence(wrong)
	}
	for i := range rows {
		for _, is := range rows[i].errs {
			if errors.Is(err, is) {
				r = &rows[i]
				if detail = r.detail; detail == "" {
					detail = is.Error()
				}
				return r, "", detail
			}
		}
	}
	r = &rows[len(rows)-1]
	return r, "", r.detail
}

// sentence begins with the field that is wrong.
func sentence(e *admission.FieldError) string {
	last := e.Field[strings.LastIndexByte(e.Field, '.')+1:]
	if e.Field == "" || strings.HasPrefix(e.Message, last+" ") {
		return e.Message
	}
	return e.Field + " " + e.Message
}
