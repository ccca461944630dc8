package httpapi

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/sluicehq/sluice/admission"
)

// scanner reads the few shapes of JSON (RFC 8259) that the API takes, in one pass and without reflection: objects whose
// fields are known, strings, whole numbers, booleans. It accepts nothing that encoding/json refuses, and refuses what
// encoding/json silently repairs: names in the wrong case, duplicate names, invalid UTF-8 and lone surrogates. It never
// descends into what it does not know, so nesting costs nothing. A fuzz test holds it against encoding/json.
type scanner struct {
	b    []byte
	i    int
	path string // of the object that is read, with its dot: "items[3]."; "" for the body
}

// syntax says that the body is not JSON, and where.
func (s *scanner) syntax(what string) error {
	if s.i >= len(s.b) {
		what = "it ends too early"
	}
	return &admission.FieldError{Message: fmt.Sprintf("the body is not valid JSON at byte %d: %s", s.i+1, what)}
}

func (s *scanner) bad(field, format string, args ...any) error {
	return &admission.FieldError{Field: s.path + field, Message: fmt.Sprintf(format, args...)}
}

// wrong says that the value at hand is not what the field takes.
func (s *scanner) wrong(field, want string) error {
	if s.i >= len(s.b) {
		return s.syntax("")
	}
	if strings.HasPrefix(string(s.b[s.i:min(len(s.b), s.i+4)]), "null") {
		return s.bad(field, "%s, not null; leave the field out instead", want)
	}
	return s.bad(field, "%s, not %s", want, s.kind())
}

// kind names the value at hand.
func (s *scanner) kind() string {
	switch c := s.b[s.i]; {
	case c == '"':
		return "a string"
	case c == '{':
		return "an object"
	case c == '[':
		return "an array"
	case c == '-' || isDigit(c):
		return "a number"
	case c == 't' || c == 'f':
		return "a boolean"
	}
	return "something else"
}

func (s *scanner) space() {
	for s.i < len(s.b) {
		switch s.b[s.i] {
		case ' ', '\t', '\n', '\r':
			s.i++
		default:
			return
		}
	}
}

// skip consumes c if it comes next.
func (s *scanner) skip(c byte) bool {
	s.space()
	if s.i < len(s.b) && s.b[s.i] == c {
		s.i++
		return true
	}
	return false
}

// end makes sure that nothing follows.
func (s *scanner) end() error {
	s.space()
	if s.i < len(s.b) {
		return s.syntax("more data after the end of the object")
	}
	return nil
}

// name reads the name of the next member with its colon, or the end of the object, which was opened before.
func (s *scanner) name(first bool) (name []byte, done bool, err error) {
	if s.skip('}') {
		return nil, true, nil
	}
	if !first && !s.skip(',') {
		return nil, false, s.syntax("a comma or } must follow a value")
	}
	s.space()
	if s.i >= len(s.b) || s.b[s.i] != '"' {
		return nil, false, s.syntax("a field name in double quotes must follow")
	}
	name, err = s.quoted("")
	if err != nil {
		return nil, false, err
	}
	if !s.skip(':') {
		return nil, false, s.syntax("a colon must follow a field name")
	}
	s.space()
	return name, false, nil
}

// text reads a string of at most that many bytes. The result does not share memory with the body.
func (s *scanner) text(field string, most int) (string, error) {
	if s.i >= len(s.b) || s.b[s.i] != '"' {
		return "", s.wrong(field, "must be a string")
	}
	b, err := s.quoted(field)
	if err != nil {
		return "", err
	}
	if len(b) > most {
		return "", s.bad(field, "must be at most %d bytes, not %d", most, len(b))
	}
	return string(b), nil
}

// quoted reads a string; without escapes the result is part of the body.
func (s *scanner) quoted(field string) ([]byte, error) {
	s.i++
	start := s.i
	ascii := true
	for s.i < len(s.b) {
		switch c := s.b[s.i]; {
		case c == '"':
			b := s.b[start:s.i]
			s.i++
			if !ascii && !utf8.Valid(b) {
				return nil, s.notUTF8(field)
			}
			return b, nil
		case c == '\\':
			return s.escaped(field, start)
		case c < ' ':
			return nil, s.syntax(`control characters in strings are written as \u00XX`)
		case c >= utf8.RuneSelf:
			ascii = false
		}
		s.i++
	}
	return nil, s.syntax("")
}

func (s *scanner) notUTF8(field string) error {
	if field == "" {
		return s.bad(field, "a field name is not valid UTF-8")
	}
	return s.bad(field, "must be valid UTF-8")
}

// escaped reads on from the first escape of a string.
func (s *scanner) escaped(field string, start int) ([]byte, error) {
	b := append([]byte(nil), s.b[start:s.i]...)
	for s.i < len(s.b) {
		c := s.b[s.i]
		switch {
		case c == '"':
			s.i++
			if !utf8.Valid(b) {
				return nil, s.notUTF8(field)
			}
			return b, nil
		case c < ' ':
			return nil, s.syntax(`control characters in strings are written as \u00XX`)
		case c != '\\':
			b = append(b, c)
			s.i++
			continue
		}
		if s.i+1 >= len(s.b) {
			s.i = len(s.b)
			return nil, s.syntax("")
		}
		s.i++
		switch c := s.b[s.i]; c {
		case '"', '\\', '/':
			b = append(b, c)
		case 'b':
			b = append(b, '\b')
		case 'f':
			b = append(b, '\f')
		case 'n':
			b = append(b, '\n')
		case 'r':
			b = append(b, '\r')
		case 't':
			b = append(b, '\t')
		case 'u':
			r, err := s.rune(field)
			if err != nil {
				return nil, err
			}
			b = utf8.AppendRune(b, r)
			continue
		default:
			return nil, s.syntax("unknown escape in a string")
		}
		s.i++
	}
	return nil, s.syntax("")
}

// rune reads the escape whose u comes next, and its second half where it is a surrogate.
func (s *scanner) rune(field string) (rune, error) {
	r, ok := s.hex()
	if !ok {
		return 0, s.syntax(`\u takes four hexadecimal digits`)
	}
	if r < 0xD800 || r > 0xDFFF {
		return r, nil
	}
	if r < 0xDC00 && s.i+1 < len(s.b) && s.b[s.i] == '\\' && s.b[s.i+1] == 'u' {
		s.i++
		low, ok := s.hex()
		if !ok {
			return 0, s.syntax(`\u takes four hexadecimal digits`)
		}
		if low >= 0xDC00 && low <= 0xDFFF {
			return (r-0xD800)<<10 + (low - 0xDC00) + 0x10000, nil
		}
	}
	if field == "" {
		return 0, s.bad(field, "a field name has half a surrogate pair")
	}
	return 0, s.bad(field, "must be valid Unicode: it has half a surrogate pair")
}

func (s *scanner) hex() (r rune, ok bool) {
	if s.i+5 > len(s.b) {
		s.i = len(s.b)
		return 0, false
	}
	for _, c := range s.b[s.i+1 : s.i+5] {
		switch {
		case isDigit(c):
			r = r<<4 + rune(c-'0')
		case c >= 'a' && c <= 'f':
			r = r<<4 + rune(c-'a'+10)
		case c >= 'A' && c <= 'F':
			r = r<<4 + rune(c-'A'+10)
		default:
			return 0, false
		}
	}
	s.i += 5
	return r, true
}

// whole reads a whole number from 0 to most.
func (s *scanner) whole(field string, most int64) (int64, error) {
	start := s.i
	var n int64
	for s.i < len(s.b) && isDigit(s.b[s.i]) {
		d := int64(s.b[s.i] - '0')
		if n > (math.MaxInt64-d)/10 {
			n = math.MaxInt64 // stays over every bound
		} else {
			n = n*10 + d
		}
		s.i++
	}
	digits := s.i - start
	next := byte(0)
	if s.i < len(s.b) {
		next = s.b[s.i]
	}
	want := "must be a whole number from 0 to " + strconv.FormatInt(most, 10)
	switch {
	case digits == 0 && next == '-':
		return 0, s.bad(field, "%s, not negative", want)
	case digits == 0:
		return 0, s.wrong(field, want)
	case next == '.' || next == 'e' || next == 'E':
		return 0, s.bad(field, "%s, written without a fraction or an exponent", want)
	case digits > 1 && s.b[start] == '0':
		s.i = start
		return 0, s.syntax("a number must not begin with 0")
	case n > most:
		return 0, s.bad(field, "%s", want)
	}
	return n, nil
}

// truth reads a boolean.
func (s *scanner) truth(field string) (bool, error) {
	rest := s.b[s.i:]
	switch {
	case len(rest) >= 4 && string(rest[:4]) == "true":
		s.i += 4
		return true, nil
	case len(rest) >= 5 && string(rest[:5]) == "false":
		s.i += 5
		return false, nil
	}
	return false, s.wrong(field, "must be true or false")
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }
