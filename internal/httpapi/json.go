package httpapi

import (
	"encoding/json"
	"strconv"
	"time"
)

// Answers are written by appending: it costs a fraction of encoding/json's reflection. Tests hold every answer against
// encoding/json of the same values, byte by byte.

// appendString appends s as encoding/json would. What the gate says is nearly always plain ASCII.
func appendString(b []byte, s string) []byte {
	for i := range len(s) {
		switch c := s[i]; {
		case c < ' ' || c > '~', c == '"', c == '\\', c == '<', c == '>', c == '&':
			quoted, err := json.Marshal(s)
			if err != nil { // cannot be: every string can be marshalled
				return append(b, `""`...)
			}
			return append(b, quoted...)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}

// appendMember appends the comma, unless an object begins here, and the name of a member, which needs no escapes.
func appendMember(b []byte, name string) []byte {
	if b[len(b)-1] != '{' {
		b = append(b, ',')
	}
	b = append(b, '"')
	b = append(b, name...)
	return append(b, '"', ':')
}

func appendText(b []byte, name, value string) []byte {
	return appendString(appendMember(b, name), value)
}

func appendNumber(b []byte, name string, value int64) []byte {
	return strconv.AppendInt(appendMember(b, name), value, 10)
}

// appendTime appends an instant in UTC with milliseconds, RFC 3339.
func appendTime(b []byte, name string, t time.Time) []byte {
	b = append(appendMember(b, name), '"')
	b = t.UTC().AppendFormat(b, "2006-01-02T15:04:05.000Z07:00")
	return append(b, '"')
}

func appendStrings(b []byte, name string, values []string) []byte {
	b = append(appendMember(b, name), '[')
	for i, v := range values {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(b, v)
	}
	return append(b, ']')
}

// ceilMS gives whole milliseconds, rounded up.
func ceilMS(d time.Duration) int64 { return ceilDiv(int64(d), int64(time.Millisecond)) }

// ceilSeconds gives whole seconds, rounded up.
func ceilSeconds(d time.Duration) int64 { return ceilDiv(int64(d), int64(time.Second)) }

// ceilDiv divides a number that is not negative.
func ceilDiv(a, b int64) int64 {
	q := a / b
	if a%b > 0 {
		q++
	}
	return q
}
