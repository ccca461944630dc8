package httpapi

import (
	"errors"
	"io"
	"mime"
	"net/http"
	"os"

	"github.com/sluicehq/sluice/admission"
)

// Bounds of bodies.
const (
	maxBody      = 64 << 10
	maxBatchBody = 4 << 20
)

// read reads a JSON body of at most that many bytes into s.in. No body is an empty one.
func (s *scratch) read(r *http.Request, most int) error {
	if r.ContentLength == 0 || r.Body == nil {
		return nil
	}
	if !isJSON(r.Header) {
		return errMediaType
	}
	if r.ContentLength > int64(most) {
		return errTooLarge
	}
	if cap(s.in) == 0 {
		s.in = make([]byte, 0, 512)
	}
	for {
		if len(s.in) == cap(s.in) {
			s.in = append(s.in, 0)[:len(s.in)]
		}
		n, err := r.Body.Read(s.in[len(s.in):cap(s.in)])
		s.in = s.in[:len(s.in)+n]
		switch {
		case len(s.in) > most:
			return errTooLarge
		case err == nil:
		case errors.Is(err, io.EOF):
			return nil
		case errors.Is(err, os.ErrDeadlineExceeded):
			return errTooSlow
		default:
			return errBroken
		}
	}
}

// isJSON looks at what the body says it is; saying nothing is fine.
func isJSON(h http.Header) bool {
	if e := h["Content-Encoding"]; len(e) > 1 || len(e) == 1 && e[0] != "identity" {
		return false
	}
	switch t := h["Content-Type"]; {
	case len(t) == 0:
		return true
	case len(t) > 1:
		return false
	case t[0] == "application/json":
		return true
	default:
		kind, _, err := mime.ParseMediaType(t[0])
		return err == nil && kind == "application/json"
	}
}

// parseBatch reads the body of a batch: asks, and whether all or none of them go.
func parseBatch(body []byte) (asks []admission.Ask, allOrNothing bool, err error) {
	s := scanner{b: body}
	if !s.skip('{') {
		return nil, false, s.notObject()
	}
	var seenItems, seenAll bool
	for first := true; ; first = false {
		name, done, err := s.name(first)
		switch {
		case err != nil:
			return nil, false, err
		case done:
			if err := s.checkBatch(asks, seenItems, allOrNothing); err != nil {
				return nil, false, err
			}
			return asks, allOrNothing, s.end()
		case string(name) == "items" && !seenItems:
			seenItems = true
			asks, err = s.batch()
		case string(name) == "all_or_nothing" && !seenAll:
			seenAll = true
			allOrNothing, err = s.truth("all_or_nothing")
		case string(name) == "items" || string(name) == "all_or_nothing":
			err = s.bad(string(name), "occurs twice")
		default:
			err = s.unknown(name, "items, all_or_nothing")
		}
		if err != nil {
			return nil, false, err
		}
	}
}

// Bounds of batches.
const (
	maxItems        = 1000
	maxAllOrNothing = 64
)

func (s *scanner) checkBatch(asks []admission.Ask, seen, allOrNothing bool) error {
	switch {
	case !seen:
		return s.bad("items", "is missing: the asks of the batch")
	case len(asks) == 0:
		return s.bad("items", "must hold at least one ask")
	case allOrNothing && len(asks) > maxAllOrNothing:
		return s.bad("items", "must hold at most %d asks with all_or_nothing, not %d", maxAllOrNothing, len(asks))
	}
	return nil
}

func (s *scanner) batch() ([]admission.Ask, error) {
	if !s.skip('[') {
		return nil, s.wrong("items", "must be an array of asks")
	}
	if s.skip(']') {
		return nil, nil
	}
	var asks []admission.Ask
	for {
		if len(asks) == maxItems {
			return nil, s.bad("items", "must hold at most %d asks", maxItems)
		}
		field := "items[" + itoa(len(asks)) + "]"
		if !s.skip('{') {
			return nil, s.wrong(field, "must be an object")
		}
		s.path = field + "."
		ask, err := s.ask(true)
		if err != nil {
			return nil, err
		}
		s.path = ""
		asks = append(asks, ask)
		switch {
		case s.skip(']'):
			return asks, nil
		case !s.skip(','):
			return nil, s.syntax("a comma or ] must follow an item")
		}
	}
}
