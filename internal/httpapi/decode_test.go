package httpapi_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluicehq/sluice/admission"
)

type problem struct {
	Type, Title, Detail, Field, Outcome, Reason string
	Status                                      int
	RetryAfterMS                                int64    `json:"retry_after_ms"`
	NotReady                                    []string `json:"not_ready"`
}

func problemOf(t *testing.T, got answer) problem {
	t.Helper()
	require.Equal(t, "application/problem+json", got.header.Get("Content-Type"), got.body)
	var p problem
	require.NoError(t, json.Unmarshal([]byte(got.body), &p), got.body)
	return p
}

func TestAdmit_passesTheAskOn(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]admission.Ask{
		``:   {},
		`{}`: {},
		`{"tenant":"acme","class":"bulk","cost":3,"min_cost":1,"settle_later":true}`: {
			Tenant: "acme", Class: "bulk", Costs: map[string]int64{"requests": 3}, MinCosts: map[string]int64{"requests": 1}, SettleLater: true,
		},
		`{"costs":{"requests":0,"llm_tokens":1099511627776},"min_costs":{"llm_tokens":7},"dry_run":true,"mode":"reject"}`: {
			Costs: map[string]int64{"requests": 0, "llm_tokens": 1 << 40}, MinCosts: map[string]int64{"llm_tokens": 7}, DryRun: true, Mode: admission.ModeReject,
		},
		`{"mode":"reserve","wait":"1m"}`:             {Mode: admission.ModeReserve, Wait: time.Minute},
		`{"wait":"500ms","mode":"reserve","cost":0}`: {Mode: admission.ModeReserve, Wait: 500 * time.Millisecond, Costs: map[string]int64{"requests": 0}},
		`{"tenant":"}x:\n\u0000\ud83d\ude00"}`:       {Tenant: "}x:\n\x00😀"},
	} {
		t.Run(body, func(t *testing.T) {
			t.Parallel()
			a := newAPI(t, 0)
			require.Equal(t, 200, a.post(admissions, body).status)
			require.Equal(t, []admission.Ask{want}, a.fake.asks)
		})
	}
}

func TestAdmit_refusesBeforeTheGate(t *testing.T) {
	t.Parallel()
	const bound = "1099511627776"
	for _, c := range []struct{ body, field, detail string }{
		{`{"tennant":"a"}`, "tennant", "did you mean tenant?"},
		{`{"Tenant":"a"}`, "Tenant", "did you mean tenant?"},
		{`{"limiter":{"max":1}}`, "limiter", "known are tenant, class"},
		{`{"cost":1,"cost":2}`, "cost", "occurs twice"},
		{`{"tenant":"a","t\u0065nant":"b"}`, "tenant", "occurs twice"},
		{`{"costs":{"points":1,"points":1}}`, "costs.points", "occurs twice"},
		{`{} {}`, "", "more data after the end"},
		{`{}]`, "", "more data after the end"},
		{`{"tenant":"a"`, "", "ends too early"},
		{`{"tenant":"a",}`, "", "field name in double quotes"},
		{`{'tenant':"a"}`, "", "field name in double quotes"},
		{`[]`, "", "must be a JSON object"},
		{`null`, "", "must be a JSON object"},
		{` `, "", "ends too early"},
		{`{"cost":-1}`, "cost", "not negative"},
		{`{"cost":1.5}`, "cost", "without a fraction"},
		{`{"cost":1.0}`, "cost", "without a fraction"},
		{`{"cost":1e308}`, "cost", "without a fraction or an exponent"},
		{`{"cost":NaN}`, "cost", "must be a whole number"},
		{`{"cost":Infinity}`, "cost", "must be a whole number"},
		{`{"cost":null}`, "cost", "not null; leave the field out"},
		{`{"cost":"1"}`, "cost", "not a string"},
		{`{"cost":[1]}`, "cost", "not an array"},
		{`{"cost":1099511627777}`, "cost", "from 0 to " + bound},
		{`{"cost":99999999999999999999999}`, "cost", "from 0 to " + bound},
		{`{"costs":{"llm_tokens":-1}}`, "costs.llm_tokens", "not negative"},
		{`{"costs":{"LLM":1}}`, "costs", "no unit"},
		{`{"costs":{}}`, "costs", "at least one unit"},
		{`{"costs":3}`, "costs", "must be an object of costs per unit, not a number"},
		{`{"cost":1,"costs":{"points":1}}`, "cost", "beside costs"},
		{`{"min_cost":2}`, "min_cost", "at most the cost, 1"},
		{`{"cost":5,"min_costs":{"points":1}}`, "min_costs.points", "does not name"},
		{`{"min_cost":0,"mode":"reserve"}`, "min_cost", "reject"},
		{`{"dry_run":1}`, "dry_run", "true or false, not a number"},
		{`{"mode":"queue"}`, "mode", `mode "queue" is not offered by this version`},
		{`{"mode":"maybe"}`, "mode", `must be "reject" or "reserve"`},
		{`{"wait":"5s"}`, "wait", `mode "reserve" only`},
		{`{"wait":"0s"}`, "wait", `mode "reserve" only`},
		{`{"wait":5,"mode":"reserve"}`, "wait", `such as "500ms"`},
		{`{"wait":"5","mode":"reserve"}`, "wait", `such as "500ms"`},
		{`{"wait":"61s","mode":"reserve"}`, "wait", "from 0s to 1m0s"},
		{`{"wait":"-1s","mode":"reserve"}`, "wait", "from 0s to 1m0s"},
		{`{"expires_in":"5m"}`, "expires_in", "not offered by this version"},
		{`{"deadline":"2026-12-01T00:00:00Z"}`, "deadline", "not offered by this version"},
		{`{"callback":{"url":"https://x"}}`, "callback", "not offered by this version"},
		{`{"metadata":{"order":"17"}}`, "metadata", "not offered by this version"},
		{`{"idempotency_key":"a"}`, "idempotency_key", "Idempotency-Key"},
		{"{\"tenant\":\"a\xff\"}", "tenant", "valid UTF-8"},
		{"{\"class\":\"\\u0041\xc3\"}", "class", "valid UTF-8"},
		{"{\"ten\xffant\":\"a\"}", "", "not valid UTF-8"},
		{`{"tenant":"\ud800"}`, "tenant", "half a surrogate pair"},
		{`{"tenant":"` + strings.Repeat("é", 129) + `"}`, "tenant", "at most 256 bytes, not 258"},
		{`{"tenant":` + strings.Repeat("[", 60000), "tenant", "must be a string, not an array"},
		{"\ufeff{}", "", "must be a JSON object"},
	} {
		t.Run(c.body[:min(len(c.body), 60)], func(t *testing.T) {
			t.Parallel()
			a := newAPI(t, 0)
			got := a.post(admissions, c.body)
			p := problemOf(t, got)
			require.Equal(t, 400, got.status)
			require.Equal(t, "invalid", p.Reason)
			require.Equal(t, c.field, p.Field)
			require.Contains(t, p.Detail, c.detail)
			require.Zero(t, a.fake.calls)
		})
	}
}

func TestBody_bounds(t *testing.T) {
	t.Parallel()
	a := newAPI(t, 0)
	padded := func(n int) string { return `{` + strings.Repeat(" ", n-2) + `}` }
	require.Equal(t, 200, a.post(admissions, padded(64<<10)).status)
	require.Equal(t, 413, a.post(admissions, padded(64<<10+1)).status)
	batch := `{"items":[{}]` + strings.Repeat(" ", 4<<20-14) + `}`
	require.Equal(t, 200, a.post(admissions+"/batch", batch).status)
	require.Equal(t, 413, a.post(admissions+"/batch", batch+" ").status)

	for _, n := range []int{64 << 10, 64<<10 + 1, 10 << 20} { // of unknown length
		r := request("POST", admissions, "")
		r.Body, r.ContentLength = io.NopCloser(strings.NewReader(padded(n))), -1
		got := a.do(r)
		if n <= 64<<10 {
			require.Equal(t, 200, got.status)
			continue
		}
		require.Equal(t, 413, got.status)
		require.Equal(t, "close", got.header.Get("Connection"))
	}

	r := request("POST", admissions, "")
	r.Body, r.ContentLength = io.NopCloser(io.MultiReader(strings.NewReader("{"), errReader{})), 2
	require.Equal(t, 400, a.do(r).status)
}

type errReader struct{}

func (errReader) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

func TestBody_mediaType(t *testing.T) {
	t.Parallel()
	a := newAPI(t, 0)
	send := func(body string, header ...string) int {
		r := httptest.NewRequest(http.MethodPost, admissions, bytes.NewBufferString(body))
		for i := 0; i < len(header); i += 2 {
			r.Header.Add(header[i], header[i+1])
		}
		return a.do(r).status
	}
	require.Equal(t, 200, send(`{}`))
	require.Equal(t, 200, send(`{}`, "Content-Type", "application/json"))
	require.Equal(t, 200, send(`{}`, "Content-Type", "Application/JSON; charset=utf-8"))
	require.Equal(t, 200, send(``, "Content-Type", "application/x-www-form-urlencoded")) // curl -d ''
	require.Equal(t, 415, send(`{}`, "Content-Type", "application/x-www-form-urlencoded"))
	require.Equal(t, 415, send(`{}`, "Content-Type", "text/json"))
	require.Equal(t, 415, send(`{}`, "Content-Type", ";"))
	require.Equal(t, 415, send(`{}`, "Content-Type", "application/json", "Content-Type", "text/plain"))
	require.Equal(t, 415, send(`{}`, "Content-Encoding", "gzip"))
}

func TestIdempotencyKey(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("k", 255)
	for _, c := range []struct {
		lines []string
		key   string // "" means 400
	}{
		{[]string{`"8e03978e-40d5-43e8-bc93-6894a57f9324"`}, "8e03978e-40d5-43e8-bc93-6894a57f9324"},
		{[]string{`8e03978e`}, "8e03978e"},
		{[]string{` "a" `}, "a"},
		{[]string{`"a\"b\\c"`}, `a"b\c`},
		{[]string{`a,b`}, "a,b"},
		{[]string{long}, long},
		{[]string{`"` + long + `"`}, long},
		{[]string{long + "k"}, ""},
		{[]string{`"` + long + `k"`}, ""},
		{[]string{``}, ""},
		{[]string{`""`}, ""},
		{[]string{`"`}, ""},
		{[]string{`"a`}, ""},
		{[]string{`"a"b"`}, ""},
		{[]string{`"a\b"`}, ""},
		{[]string{`"a\"`}, ""},
		{[]string{`"a";x=1`}, ""},
		{[]string{`a b`}, ""},
		{[]string{`"a b"`}, ""},
		{[]string{"caf\u00e9"}, ""},
		{[]string{"a\x7f"}, ""},
		{[]string{`"a"`, `"a"`}, ""},
	} {
		t.Run(strings.Join(c.lines, "|")[:min(len(strings.Join(c.lines, "|")), 30)], func(t *testing.T) {
			t.Parallel()
			a := newAPI(t, 0)
			r := request("POST", admissions, `{}`)
			r.Header["Idempotency-Key"] = c.lines
			got := a.do(r)
			if c.key == "" {
				require.Equal(t, 400, got.status)
				require.Equal(t, "Idempotency-Key", problemOf(t, got).Field)
				require.Zero(t, a.fake.calls)
				return
			}
			require.Equal(t, 200, got.status)
			require.Equal(t, c.key, a.fake.asks[0].IdempotencyKey)
		})
	}
}
