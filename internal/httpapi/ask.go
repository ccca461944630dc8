package httpapi

import (
	"strconv"
	"strings"
	"time"

	"github.com/sluicehq/sluice/admission"
	"github.com/sluicehq/sluice/bucket"
)

// Bounds of what a body may hold.
const (
	// maxCost is the largest cost per unit, 2^40 = 1099511627776, which is the largest size of most limits: the gate takes
	// no more, and it is exact as a float64, in which stores and many JSON decoders compute.
	maxCost     = bucket.MaxSize
	maxTenant   = 256
	maxName     = 63
	maxUnits    = 64 // units named by one ask
	maxWait     = bucket.MaxAhead
	maxDuration = 64 // bytes of a duration's text
)

// Fields of an ask, as bits of what was seen.
const (
	seenTenant = 1 << iota
	seenClass
	seenCost
	seenCosts
	seenMinCost
	seenMinCosts
	seenMode
	seenWait
	seenSettleLater
	seenDryRun
	seenKey
)

// askFields lists what an ask may hold, for those who mistyped.
const askFields = "tenant, class, cost, costs, min_cost, min_costs, mode, wait, settle_later, dry_run"

// parseAsk reads the body of an ask; an empty body is {}.
func parseAsk(body []byte) (admission.Ask, error) {
	if len(body) == 0 {
		return admission.Ask{}, nil
	}
	s := scanner{b: body}
	if !s.skip('{') {
		return admission.Ask{}, s.notObject()
	}
	ask, err := s.ask(false)
	if err != nil {
		return admission.Ask{}, err
	}
	return ask, s.end()
}

func (s *scanner) notObject() error {
	if s.i >= len(s.b) {
		return s.syntax("")
	}
	return &admission.FieldError{Message: `the body must be a JSON object, such as {"tenant":"acme"}`}
}

// ask reads the object whose brace was read. As a batch item it may hold an idempotency key.
func (s *scanner) ask(item bool) (admission.Ask, error) {
	var a admission.Ask
	seen := 0
	for first := true; ; first = false {
		name, done, err := s.name(first)
		if err != nil {
			return a, err
		}
		if done {
			return a, s.check(&a, seen)
		}
		var bit int
		switch string(name) {
		case "tenant":
			bit = seenTenant
			a.Tenant, err = s.text("tenant", maxTenant)
		case "class":
			bit = seenClass
			a.Class, err = s.text("class", maxName)
		case "cost":
			bit = seenCost
			a.Costs, err = s.cost("cost", a.Costs)
		case "costs":
			bit = seenCosts
			a.Costs, err = s.costs("costs")
		case "min_cost":
			bit = seenMinCost
			a.MinCosts, err = s.cost("min_cost", a.MinCosts)
		case "min_costs":
			bit = seenMinCosts
			a.MinCosts, err = s.costs("min_costs")
		case "mode":
			bit = seenMode
			a.Mode, err = s.mode()
		case "wait":
			bit = seenWait
			a.Wait, err = s.duration("wait", maxWait)
		case "settle_later":
			bit = seenSettleLater
			a.SettleLater, err = s.truth("settle_later")
		case "dry_run":
			bit = seenDryRun
			a.DryRun, err = s.truth("dry_run")
		case "expires_in", "deadline", "callback", "metadata":
			return a, s.bad(string(name), "%s is not offered by this version; leave the field out", name)
		case "idempotency_key":
			if !item {
				return a, s.bad("idempotency_key", "is for items of a batch; send the header Idempotency-Key instead")
			}
			bit = seenKey
			a.IdempotencyKey, err = s.key()
		default:
			known := askFields
			if item {
				known += ", idempotency_key"
			}
			return a, s.unknown(name, known)
		}
		if err != nil {
			return a, err
		}
		if seen&bit != 0 {
			return a, s.bad(string(name), "occurs twice")
		}
		seen |= bit
	}
}

// check looks at what only the whole ask shows.
func (s *scanner) check(a *admission.Ask, seen int) error {
	has := func(bits int) bool { return seen&bits == bits }
	switch {
	case has(seenCost | seenCosts):
		return s.bad("cost", `stands beside costs; put it in there as "requests"`)
	case has(seenMinCost | seenMinCosts):
		return s.bad("min_cost", `stands beside min_costs; put it in there as "requests"`)
	case has(seenWait) && a.Mode != admission.ModeReserve:
		return s.bad("wait", `is for mode "reserve" only: parking a call is not offered by this version`)
	case a.Mode == admission.ModeReserve && a.MinCosts != nil:
		name := "min_costs"
		if has(seenMinCost) {
			name = "min_cost"
		}
		return s.bad(name, `is for mode "reject" only`)
	}
	for unit, least := range a.MinCosts {
		name := "min_costs." + unit
		if has(seenMinCost) {
			name = "min_cost"
		}
		most, ok := a.Costs[unit]
		if a.Costs == nil && unit == bucket.Requests {
			most, ok = 1, true
		}
		if !ok {
			return s.bad(name, "is of a unit that costs does not name")
		}
		if least > most {
			return s.bad(name, "must be at most the cost, %d", most)
		}
	}
	return nil
}

func (s *scanner) unknown(name []byte, known string) error {
	field := string(name)
	if len(field) > maxName {
		field = strings.ToValidUTF8(field[:maxName], "") + "..."
	}
	if near := nearest(field, known); near != "" {
		return s.bad(field, "is not a known field; did you mean %s?", near)
	}
	return s.bad(field, "is not a known field; known are %s", known)
}

// cost reads the short form of costs. What costs were read before stays: check refuses both forms together.
func (s *scanner) cost(field string, before map[string]int64) (map[string]int64, error) {
	n, err := s.whole(field, maxCost)
	if err != nil || before != nil {
		return before, err
	}
	return map[string]int64{bucket.Requests: n}, nil
}

func (s *scanner) costs(field string) (map[string]int64, error) {
	if !s.skip('{') {
		return nil, s.wrong(field, "must be an object of costs per unit")
	}
	costs := map[string]int64{}
	for first := true; ; first = false {
		name, done, err := s.name(first)
		if err != nil {
			return nil, err
		}
		if done && first {
			return nil, s.bad(field, "must name at least one unit")
		}
		if done {
			return costs, nil
		}
		if !validName(name) {
			return nil, s.bad(field, "has a name that is no unit: units are [a-z0-9][a-z0-9._-]*, at most %d bytes", maxName)
		}
		unit := string(name)
		if _, twice := costs[unit]; twice {
			return nil, s.bad(field+"."+unit, "occurs twice")
		}
		if len(costs) == maxUnits {
			return nil, s.bad(field, "must name at most %d units", maxUnits)
		}
		n, err := s.whole(field+"."+unit, maxCost)
		if err != nil {
			return nil, err
		}
		costs[unit] = n
	}
}

func (s *scanner) mode() (admission.Mode, error) {
	text, err := s.text("mode", maxName)
	if err != nil {
		return "", err
	}
	switch text {
	case string(admission.ModeReject):
		return admission.ModeReject, nil
	case string(admission.ModeReserve):
		return admission.ModeReserve, nil
	case "queue":
		return "", s.bad("mode", `mode "queue" is not offered by this version; use "reject" or "reserve"`)
	}
	return "", s.bad("mode", `must be "reject" or "reserve"`)
}

// duration reads a duration such as "500ms", from 0 to most.
func (s *scanner) duration(field string, most time.Duration) (time.Duration, error) {
	if s.i >= len(s.b) || s.b[s.i] != '"' {
		return 0, s.wrong(field, `must be a duration in quotes, such as "500ms" or "5s"`)
	}
	text, err := s.text(field, maxDuration)
	if err != nil {
		return 0, err
	}
	d, err := time.ParseDuration(text)
	switch {
	case err != nil:
		return 0, s.bad(field, `must be a duration, such as "500ms" or "5s"`)
	case d < 0 || d > most || strings.HasPrefix(text, "-"):
		return 0, s.bad(field, "must be from 0s to %s", most)
	}
	return d, nil
}

func (s *scanner) key() (string, error) {
	const want = "must be 1 to 255 visible ASCII characters"
	key, err := s.text("idempotency_key", 4*maxKey)
	if err != nil {
		return "", err
	}
	if !validKey(key) {
		return "", s.bad("idempotency_key", want)
	}
	return key, nil
}

// validName reports whether b is a name as policies use them for dependencies, limits, classes and units.
func validName[T string | []byte](b T) bool {
	if len(b) == 0 || len(b) > maxName {
		return false
	}
	for i := range len(b) {
		c := b[i]
		switch {
		case c >= 'a' && c <= 'z', isDigit(c):
		case i > 0 && (c == '.' || c == '_' || c == '-'):
		default:
			return false
		}
	}
	return true
}

func itoa(i int) string { return strconv.Itoa(i) }
