package httpapi

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/sluicehq/sluice/admission"
)

// scratch is the memory of one request.
type scratch struct {
	in, out, head []byte
	items         []item
	parts         []part
}

// part is a header whose value is a part of scratch.head.
type part struct {
	name     string // in canonical form
	from, to int
}

// maxKept is the largest buffer that is kept for the next request: a few big batches must not stay for ever.
const maxKept = 64 << 10

func (h *Handler) borrow() *scratch {
	s, _ := h.scratch.Get().(*scratch)
	return s
}

func (h *Handler) giveBack(s *scratch) {
	if cap(s.in) > maxKept || cap(s.out) > maxKept {
		return
	}
	clear(s.items) // they refer to the decision
	s.in, s.out, s.head, s.items, s.parts = s.in[:0], s.out[:0], s.head[:0], s.items[:0], s.parts[:0]
	h.scratch.Put(s)
}

// header begins a header; its value is what is appended to s.head until the next one begins.
func (s *scratch) header(name string) {
	s.close()
	s.parts = append(s.parts, part{name: name, from: len(s.head)})
}

func (s *scratch) close() {
	if n := len(s.parts); n > 0 {
		s.parts[n-1].to = len(s.head)
	}
}

func (s *scratch) number(name string, n int64) {
	s.header(name)
	s.head = strconv.AppendInt(s.head, n, 10)
}

// send writes the answer that was put together. All header values are parts of one string.
func (h *Handler) send(w http.ResponseWriter, s *scratch, status int, contentType []string) {
	headers := w.Header()
	headers["Content-Type"] = contentType
	headers["Cache-Control"] = h.fixed.noStore
	if len(s.parts) > 0 {
		s.close()
		all := string(s.head)
		values := make([]string, len(s.parts))
		for i, p := range s.parts {
			values[i] = all[p.from:p.to]
			headers[p.name] = values[i : i+1 : i+1]
		}
	}
	w.WriteHeader(status)
	_, _ = w.Write(s.out) // who has gone cannot be told
}

// rateLimits puts the headers about the limits together, and gives the largest t of those that refuse.
func (h *Handler) rateLimits(s *scratch, d *admission.Decision) (refused int64) {
	s.items = items(s.items[:0], d)
	if len(s.items) == 0 {
		return 0
	}
	s.header("Ratelimit-Policy")
	for i := range s.items {
		if i > 0 {
			s.head = append(s.head, ", "...)
		}
		s.head = appendPolicy(s.head, &s.items[i], h.windows.seconds(s.items[i].state, d.Now))
	}
	s.header("Ratelimit")
	for i := range s.items {
		if i > 0 {
			s.head = append(s.head, ", "...)
		}
		s.head = appendRateLimit(s.head, &s.items[i])
		if s.items[i].refuses {
			refused = max(refused, s.items[i].seconds)
		}
	}
	first := &s.items[0]
	s.number("X-Ratelimit-Limit", first.state.Limit.Size)
	s.number("X-Ratelimit-Remaining", first.left)
	reset := ceilSeconds(first.state.Reset)
	if first.refuses { // no limit is untouched before who is refused may come back
		reset = max(reset, ceilSeconds(first.state.Wait))
	}
	s.number("X-Ratelimit-Reset", reset)
	return refused
}

// decision answers with a decision.
func (h *Handler) decision(w http.ResponseWriter, s *scratch, d *admission.Decision) {
	refused := h.rateLimits(s, d)
	if d.Outcome == admission.OutcomeAdmitted {
		s.out = appendAdmitted(s.out, d, false)
		if d.Replayed {
			w.Header()["Idempotent-Replayed"] = h.fixed.yes
		}
		h.send(w, s, http.StatusOK, h.fixed.json)
		return
	}
	r := forReason(h.rows, d.Reason)
	retry := retryOf(r, d)
	s.out = append(appendRefused(s.out, r, d, retry), '}')
	if r.later {
		s.number("Retry-After", max(1, ceilSeconds(retry), refused))
	}
	h.send(w, s, r.status, h.fixed.problem)
}

// retryOf is when the ask may come again.
func retryOf(r *row, d *admission.Decision) time.Duration {
	if !r.later {
		return 0
	}
	if d.RetryAfter > 0 {
		return d.RetryAfter
	}
	return again()
}

// fail answers with what an error means. Asks on which no decision was made are counted; faults are logged.
func (h *Handler) fail(w http.ResponseWriter, r *http.Request, dependency, class string, err error) {
	if errors.Is(err, context.Canceled) && r.Context().Err() != nil {
		panic(http.ErrAbortHandler) // the caller has gone: there is nobody to answer, and nothing to count
	}
	row, field, detail := forError(h.rows, err)
	if row.status == http.StatusInternalServerError {
		h.log.ErrorContext(r.Context(), "request failed",
			slog.String("route", h.routeOf(r)), slog.String("dependency", dependency), slog.Any("error", err))
	}
	if dependency != "" {
		h.metrics.Refused(dependency, class, row.reason)
	}
	if errors.Is(err, errTooSlow) || errors.Is(err, errTooLarge) || errors.Is(err, errBroken) {
		w.Header().Set("Connection", "close") // what is left of the body is not wanted
	}
	h.problem(w, row, field, detail)
}

// problem answers with a problem that is no decision.
func (h *Handler) problem(w http.ResponseWriter, r *row, field, detail string) {
	s := h.borrow()
	defer h.giveBack(s)
	s.out = appendProblem(s.out, r, detail)
	if field != "" {
		s.out = appendText(s.out, "field", field)
	}
	if r.reason != admission.ReasonNone {
		s.out = appendText(s.out, "outcome", string(admission.OutcomeRejected))
		s.out = appendText(s.out, "reason", string(r.reason))
	}
	if r.later {
		retry := again()
		s.out = appendNumber(s.out, "retry_after_ms", ceilMS(retry))
		s.number("Retry-After", max(1, ceilSeconds(retry)))
	}
	if r.kind != typeBlank {
		s.out = append(s.out, `,"violated-policies":[]`...)
	}
	s.out = append(s.out, '}')
	h.send(w, s, r.status, h.fixed.problem)
}
