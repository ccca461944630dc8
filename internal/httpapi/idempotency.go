package httpapi

import (
	"net/http"
	"strings"

	"github.com/sluicehq/sluice/admission"
)

// maxKey is the length of the longest idempotency key.
const maxKey = 255

// idempotencyKey reads the header Idempotency-Key (draft-ietf-httpapi-idempotency-key-header): a structured-field string
// (RFC 9651, section 3.3.3), or the same without quotes. "" means that there is none.
func idempotencyKey(h http.Header) (string, error) {
	lines := h["Idempotency-Key"]
	switch len(lines) {
	case 0:
		return "", nil
	case 1:
	default:
		return "", badKey("occurs several times; send one line")
	}
	line := strings.Trim(lines[0], " \t")
	if !strings.HasPrefix(line, `"`) {
		if !validKey(line) {
			return "", badKey("must be 1 to 255 visible ASCII characters")
		}
		return line, nil
	}
	if len(line) < 2 || line[len(line)-1] != '"' {
		return "", badKey("begins with a double quote and must end with one, without parameters")
	}
	key, ok := unquote(line[1 : len(line)-1])
	if !ok {
		return "", badKey(`must be a structured-field string: within the quotes only \" and \\ are escaped`)
	}
	if !validKey(key) {
		return "", badKey("must be 1 to 255 visible ASCII characters within the quotes")
	}
	return key, nil
}

func badKey(message string) error {
	return &admission.FieldError{Field: "Idempotency-Key", Message: message}
}

func unquote(s string) (string, bool) {
	if !strings.ContainsAny(s, `"\`) {
		return s, true
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c == '"' {
			return "", false
		}
		if c == '\\' {
			i++
			if i == len(s) || (s[i] != '"' && s[i] != '\\') {
				return "", false
			}
			c = s[i]
		}
		b.WriteByte(c)
	}
	return b.String(), true
}

func validKey(key string) bool {
	if key == "" || len(key) > maxKey {
		return false
	}
	for i := range len(key) {
		if key[i] <= ' ' || key[i] > '~' {
			return false
		}
	}
	return true
}
