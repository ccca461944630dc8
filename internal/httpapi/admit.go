package httpapi

import (
	"net/http"
	"time"

	"github.com/gorilla/mux"

	"github.com/sluicehq/sluice/admission"
)

// admit serves POST /v1/dependencies/{dependency}/admissions.
func (h *Handler) admit(w http.ResponseWriter, r *http.Request) {
	dependency := mux.Vars(r)["dependency"]
	s := h.borrow()
	defer h.giveBack(s)
	ask, err := s.parse(r, dependency)
	if err != nil {
		h.fail(w, r, dependency, "", err)
		return
	}
	began := h.now()
	d, err := h.gate.Admit(r.Context(), dependency, ask)
	if err != nil {
		h.fail(w, r, dependency, ask.Class, err)
		return
	}
	if !ask.DryRun {
		h.metrics.Decided(dependency, ask.Class, &d, h.now().Sub(began))
	}
	h.decision(w, s, &d)
}

// parse reads everything that the request says about an ask.
func (s *scratch) parse(r *http.Request, dependency string) (ask admission.Ask, err error) {
	if !validName(dependency) {
		return ask, admission.ErrUnknownDependency
	}
	key, err := idempotencyKey(r.Header)
	if err != nil {
		return ask, err
	}
	if err := s.read(r, maxBody); err != nil {
		return ask, err
	}
	ask, err = parseAsk(s.in)
	ask.IdempotencyKey = key
	return ask, err
}

// admitBatch serves POST /v1/dependencies/{dependency}/admissions/batch.
func (h *Handler) admitBatch(w http.ResponseWriter, r *http.Request) {
	dependency := mux.Vars(r)["dependency"]
	s := h.borrow()
	defer h.giveBack(s)
	asks, allOrNothing, err := s.parseBatch(r, dependency)
	if err != nil {
		h.fail(w, r, dependency, "", err)
		return
	}
	decisions, err := h.gate.AdmitBatch(r.Context(), dependency, asks, allOrNothing)
	if err != nil {
		h.fail(w, r, dependency, "", err)
		return
	}
	for i := range decisions {
		if !asks[i].DryRun {
			h.metrics.Counted(dependency, asks[i].Class, &decisions[i])
		}
	}
	if allOrNothing {
		if i := h.refuser(decisions); i >= 0 {
			h.refuseBatch(w, s, decisions, i)
			return
		}
	}
	s.out = append(s.out, '{')
	s.out = h.appendItems(s.out, decisions)
	s.out = append(s.out, '}')
	h.send(w, s, http.StatusOK, h.fixed.json)
}

func (s *scratch) parseBatch(r *http.Request, dependency string) ([]admission.Ask, bool, error) {
	if !validName(dependency) {
		return nil, false, admission.ErrUnknownDependency
	}
	if len(r.Header["Idempotency-Key"]) > 0 {
		return nil, false, badKey("is not taken for a batch; give its items an idempotency_key each")
	}
	if err := s.read(r, maxBatchBody); err != nil {
		return nil, false, err
	}
	return parseBatch(s.in)
}

// refuser picks the item whose refusal answers for an all-or-nothing batch: one that can never go before one that
// takes longest; -1: none was refused.
func (h *Handler) refuser(decisions []admission.Decision) int {
	found, never, longest := -1, false, time.Duration(-1)
	for i := range decisions {
		d := &decisions[i]
		if d.Outcome == admission.OutcomeAdmitted || d.Reason == admission.ReasonBatch {
			continue
		}
		r := forReason(h.rows, d.Reason)
		switch {
		case !r.later && !never:
			found, never = i, true
		case r.later && !never && d.RetryAfter > longest:
			found, longest = i, d.RetryAfter
		}
	}
	return found
}

// refuseBatch answers an all-or-nothing batch of which nothing was taken: the refusal of one item, and all of them.
func (h *Handler) refuseBatch(w http.ResponseWriter, s *scratch, decisions []admission.Decision, i int) {
	d := &decisions[i]
	refused := h.rateLimits(s, d)
	r := forReason(h.rows, d.Reason)
	retry := retryOf(r, d)
	s.out = appendRefused(s.out, r, d, retry)
	s.out = appendNumber(s.out, "item", int64(i))
	s.out = append(h.appendItems(s.out, decisions), '}')
	if r.later {
		s.number("Retry-After", max(1, ceilSeconds(retry), refused))
	}
	h.send(w, s, r.status, h.fixed.problem)
}

// appendItems appends the answer of every item, each with its status.
func (h *Handler) appendItems(b []byte, decisions []admission.Decision) []byte {
	b = append(appendMember(b, "items"), '[')
	for i := range decisions {
		if i > 0 {
			b = append(b, ',')
		}
		d := &decisions[i]
		if d.Outcome == admission.OutcomeAdmitted {
			b = appendAdmitted(b, d, true)
			continue
		}
		r := forReason(h.rows, d.Reason)
		b = append(appendRefused(b, r, d, retryOf(r, d)), '}')
	}
	return append(b, ']')
}
