package httpapi

import (
	"net/http"
	"time"

	"github.com/gorilla/mux"

	"github.com/sluicehq/sluice/admission"
)

const (
	maxTicketID = 64
	// maxHold bounds how far an end can be moved at once; the limit's own max_hold bounds it further.
	maxHold = 30 * 24 * time.Hour
)

// settle serves POST …/tickets/{id}/settle.
func (h *Handler) settle(w http.ResponseWriter, r *http.Request) {
	h.grant(w, r, "settled", func(body []byte) (admission.GrantOp, error) {
		costs, err := parseSettle(body)
		return admission.GrantOp{Verb: admission.GrantSettle, Costs: costs}, err
	})
}

// release serves POST …/tickets/{id}/release.
func (h *Handler) release(w http.ResponseWriter, r *http.Request) {
	h.grant(w, r, "released", func(body []byte) (admission.GrantOp, error) {
		return admission.GrantOp{Verb: admission.GrantRelease}, parseNothing(body)
	})
}

// extend serves POST …/tickets/{id}/extend.
func (h *Handler) extend(w http.ResponseWriter, r *http.Request) {
	h.grant(w, r, "extended", func(body []byte) (admission.GrantOp, error) {
		hold, err := parseExtend(body)
		return admission.GrantOp{Verb: admission.GrantExtend, Hold: hold}, err
	})
}

// cancel serves DELETE …/tickets/{id}.
func (h *Handler) cancel(w http.ResponseWriter, r *http.Request) {
	h.grant(w, r, "cancelled", func(body []byte) (admission.GrantOp, error) {
		return admission.GrantOp{Verb: admission.GrantCancel}, parseNothing(body)
	})
}

// grant does one operation on a grant.
func (h *Handler) grant(
	w http.ResponseWriter, r *http.Request, done string, parse func(body []byte) (admission.GrantOp, error),
) {
	vars := mux.Vars(r)
	dependency, id := vars["dependency"], vars["id"]
	s := h.borrow()
	defer h.giveBack(s)
	var op admission.GrantOp
	err := checkTicket(dependency, id)
	if err == nil {
		err = s.read(r, maxBody)
	}
	if err == nil {
		op, err = parse(s.in)
	}
	var a admission.Settlement
	if err == nil {
		a, err = h.gate.Grant(r.Context(), dependency, id, op)
	}
	if err != nil {
		h.fail(w, r, "", "", err) // grants are no asks: they are not counted as decisions
		return
	}
	if a.Replayed {
		w.Header()["Idempotent-Replayed"] = h.fixed.yes
	}
	s.out = appendSettlement(s.out, &a, done)
	h.send(w, s, http.StatusOK, h.fixed.json)
}

func checkTicket(dependency, id string) error {
	if !validName(dependency) {
		return admission.ErrUnknownDependency
	}
	if len(id) > maxTicketID {
		return admission.ErrUnknownGrant
	}
	for i := range len(id) {
		if c := id[i]; !isDigit(c) && c != '_' && (c|0x20 < 'a' || c|0x20 > 'z') {
			return admission.ErrUnknownGrant
		}
	}
	return nil
}

func appendSettlement(b []byte, a *admission.Settlement, done string) []byte {
	b = append(b, '{')
	b = appendText(b, "id", a.ID)
	b = appendText(b, "outcome", done)
	if len(a.Returned) > 0 {
		b = appendCosts(b, "returned", a.Returned)
	}
	if !a.ExpiresAt.IsZero() {
		b = appendTime(b, "expires_at", a.ExpiresAt)
	}
	if a.Late {
		b = append(appendMember(b, "late"), "true"...)
	}
	return append(b, '}')
}

// parseSettle reads the real costs. They must be said: what was not measured is not 1.
func parseSettle(body []byte) (map[string]int64, error) {
	s := scanner{b: body}
	if len(body) == 0 {
		return nil, s.bad("cost", `is missing: the real cost, or costs per unit`)
	}
	if !s.skip('{') {
		return nil, s.notObject()
	}
	var costs map[string]int64
	seen := 0
	for first := true; ; first = false {
		name, done, err := s.name(first)
		var bit int
		switch {
		case err != nil:
			return nil, err
		case done && seen == 0:
			return nil, s.bad("cost", `is missing: the real cost, or costs per unit`)
		case done && seen == seenCost|seenCosts:
			return nil, s.bad("cost", `stands beside costs; put it in there as "requests"`)
		case done:
			return costs, s.end()
		case string(name) == "cost":
			bit = seenCost
			costs, err = s.cost("cost", costs)
		case string(name) == "costs":
			bit = seenCosts
			costs, err = s.costs("costs")
		default:
			return nil, s.unknown(name, "cost, costs")
		}
		if err == nil && seen&bit != 0 {
			err = s.bad(string(name), "occurs twice")
		}
		if err != nil {
			return nil, err
		}
		seen |= bit
	}
}

func parseExtend(body []byte) (hold time.Duration, err error) {
	s := scanner{b: body}
	if len(body) > 0 && !s.skip('{') {
		return 0, s.notObject()
	}
	seen := false
	for first := true; len(body) > 0; first = false {
		name, done, err := s.name(first)
		switch {
		case err != nil:
			return 0, err
		case done && seen:
			return hold, s.end()
		case done:
			return 0, s.noHold()
		case string(name) != "hold":
			return 0, s.unknown(name, "hold")
		case seen:
			return 0, s.bad("hold", "occurs twice")
		}
		seen = true
		if hold, err = s.duration("hold", maxHold); err != nil {
			return 0, err
		}
		if hold == 0 {
			return 0, s.bad("hold", "must be more than 0s; to end a grant, release it")
		}
	}
	return 0, s.noHold()
}

func (s *scanner) noHold() error {
	return s.bad("hold", `is missing: how long from now, such as "30s"`)
}

// parseNothing makes sure that a body says nothing.
func parseNothing(body []byte) error {
	if len(body) == 0 {
		return nil
	}
	s := scanner{b: body}
	if !s.skip('{') {
		return s.notObject()
	}
	name, done, err := s.name(true)
	if err != nil {
		return err
	}
	if !done {
		return s.bad(string(name), "is not a known field; none is taken here")
	}
	return s.end()
}
