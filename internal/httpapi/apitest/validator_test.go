package apitest_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluicehq/sluice/internal/httpapi/apitest"
)

func TestValidator_findsWhatIsNotDescribed(t *testing.T) {
	t.Parallel()
	v, err := apitest.New()
	require.NoError(t, err)
	const admissions = "/v1/dependencies/shop/admissions"
	noStore := http.Header{"Content-Type": {"application/json"}, "Cache-Control": {"no-store"}}
	problem := http.Header{"Content-Type": {"application/problem+json"}, "Cache-Control": {"no-store"}}
	with := func(h http.Header, key, value string) http.Header {
		h = h.Clone()
		if value == "" {
			h.Del(key)
		} else {
			h.Set(key, value)
		}
		return h
	}
	ok := `{"outcome":"admitted","source":"redis","limits":[]}`
	refused := `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota Exceeded",` +
		`"status":429,"detail":"no","outcome":"rejected","reason":"limit","retry_after_ms":1,"violated-policies":["a"],"limits":[]}`
	for _, c := range []struct {
		name, method, path string
		status             int
		header             http.Header
		body               string
		bad                string // part of the error; "" means that there is none
	}{
		{"as described", "POST", admissions, 200, noStore, ok, ""},
		{"refused as described", "POST", admissions, 429, with(problem, "Retry-After", "1"), refused, ""},
		{"unknown status", "POST", admissions, 201, noStore, ok, "status is not supported"},
		{"missing header", "POST", admissions, 200, with(noStore, "Cache-Control", ""), ok, "Cache-Control"},
		{"wrong header", "POST", admissions, 200, with(noStore, "Cache-Control", "public"), ok, "Cache-Control"},
		{"no Retry-After", "POST", admissions, 429, problem, refused, "Retry-After"},
		{"Retry-After 0", "POST", admissions, 429, with(problem, "Retry-After", "0"), refused, "Retry-After"},
		{"Retry-After with fraction", "POST", admissions, 429, with(problem, "Retry-After", "1.5"), refused, "Retry-After"},
		{"unknown member", "POST", admissions, 200, noStore, strings.Replace(ok, "{", `{"x":1,`, 1), "not as described"},
		{"unknown member of a refusal", "POST", admissions, 429, with(problem, "Retry-After", "1"), strings.Replace(refused, "{", `{"x":1,`, 1), "not as described"},
		{"unknown reason", "POST", admissions, 429, with(problem, "Retry-After", "1"), strings.Replace(refused, `"limit"`, `"lim"`, 1), "not as described"},
		{"other status in the body", "POST", admissions, 429, with(problem, "Retry-After", "1"), strings.Replace(refused, "429", "503", 1), "says 503"},
		{"wrong media type", "POST", admissions, 200, with(noStore, "Content-Type", "text/plain"), ok, "Content-Type"},
		{"unknown path served", "GET", "/nowhere", 200, noStore, "{}", "not described"},
		{"unknown method served", "GET", admissions, 200, with(noStore, "Allow", "POST"), "{}", "not described"},
		{"405 without Allow", "GET", admissions, 405, problem, `{"type":"about:blank","title":"a","status":405,"detail":"a"}`, "Allow"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			err := v.Check(httptest.NewRequest(c.method, c.path, http.NoBody), c.status, c.header, []byte(c.body))
			if c.bad == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, c.bad)
		})
	}
}

func TestTransport(t *testing.T) {
	t.Parallel()
	v, err := apitest.New()
	require.NoError(t, err)
	body := `{"status":"alive"}`
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		if r.URL.RawQuery == "bad" {
			_, _ = io.WriteString(w, `{"status":"undead"}`)
			return
		}
		_, _ = io.WriteString(w, body)
	}))
	t.Cleanup(server.Close)
	client := &http.Client{Transport: v.Transport(http.DefaultTransport)}
	resp, err := client.Get(server.URL + "/livez")
	require.NoError(t, err)
	got, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.JSONEq(t, body, string(got))
	_, err = client.Get(server.URL + "/livez?bad") //nolint:bodyclose // there is none
	require.ErrorContains(t, err, "not as described")
}

// The examples of bodies must be valid JSON for the schemas; Validate of the document checks that, this that it does.
func TestNew_checksExamples(t *testing.T) {
	t.Parallel()
	v, err := apitest.New()
	require.NoError(t, err)
	n := 0
	for _, path := range v.Doc().Paths.Map() {
		for _, op := range path.Operations() {
			for _, resp := range op.Responses.Map() {
				for _, media := range resp.Value.Content {
					for _, example := range media.Examples {
						raw, err := json.Marshal(example.Value.Value)
						require.NoError(t, err)
						require.NotEmpty(t, raw)
						n++
					}
				}
			}
		}
	}
	require.Greater(t, n, 40)
}
