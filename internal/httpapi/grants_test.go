package httpapi_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluicehq/sluice/admission"
	"github.com/sluicehq/sluice/bucket"
)

const ticket = "/v1/dependencies/shop/tickets/adm_3f9a0c6e2b7d41e88a10"

func TestGrants_passTheOperationOn(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		method, path, body string
		want               admission.GrantOp
		outcome            string
	}{
		{"POST", "/settle", `{"cost":0}`, admission.GrantOp{Verb: admission.GrantSettle, Costs: map[string]int64{"requests": 0}}, "settled"},
		{"POST", "/settle", `{"costs":{"llm_tokens":9}}`, admission.GrantOp{Verb: admission.GrantSettle, Costs: map[string]int64{"llm_tokens": 9}}, "settled"},
		{"POST", "/release", ``, admission.GrantOp{Verb: admission.GrantRelease}, "released"},
		{"POST", "/release", `{}`, admission.GrantOp{Verb: admission.GrantRelease}, "released"},
		{"POST", "/extend", `{"hold":"30s"}`, admission.GrantOp{Verb: admission.GrantExtend, Hold: 30 * time.Second}, "extended"},
		{"DELETE", "", ``, admission.GrantOp{Verb: admission.GrantCancel}, "cancelled"},
	} {
		t.Run(c.outcome+c.body, func(t *testing.T) {
			t.Parallel()
			a := newAPI(t, 0)
			a.fake.grant = func(id string, _ admission.GrantOp) (admission.Settlement, error) {
				return admission.Settlement{ID: id, Replayed: true, Returned: map[string]int64{"b": -2, "a": 1}, ExpiresAt: now, Late: true}, nil
			}
			got := a.do(request(c.method, ticket+c.path, c.body))
			require.Equal(t, 200, got.status)
			require.Equal(t, []admission.GrantOp{c.want}, a.fake.ops)
			require.Equal(t, "true", got.header.Get("Idempotent-Replayed"))
			require.JSONEq(t, `{"id":"adm_3f9a0c6e2b7d41e88a10","outcome":"`+c.outcome+`","returned":{"a":1,"b":-2},"expires_at":"2026-12-01T11:00:00.250Z","late":true}`, got.body)
		})
	}
}

func TestGrants_refuseBeforeTheGate(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ method, path, body, field, detail string }{
		{"POST", "/settle", ``, "cost", "is missing"},
		{"POST", "/settle", `{}`, "cost", "is missing"},
		{"POST", "/settle", `{"costs":{}}`, "costs", "at least one"},
		{"POST", "/settle", `{"cost":1,"costs":{"a":1}}`, "cost", "beside"},
		{"POST", "/settle", `{"cost":1,"cost":1}`, "cost", "twice"},
		{"POST", "/settle", `{"cost":-1}`, "cost", "not negative"},
		{"POST", "/settle", `{"const":1}`, "const", "did you mean cost?"},
		{"POST", "/settle", `{"cost":1}}`, "", "more data"},
		{"POST", "/settle", `3`, "", "JSON object"},
		{"POST", "/extend", ``, "hold", "is missing"},
		{"POST", "/extend", `{}`, "hold", "is missing"},
		{"POST", "/extend", `{"hold":"0s"}`, "hold", "release it"},
		{"POST", "/extend", `{"hold":"721h"}`, "hold", "from 0s to 720h"},
		{"POST", "/extend", `{"hold":30}`, "hold", "duration"},
		{"POST", "/extend", `{"hold":"1s","hold":"1s"}`, "hold", "twice"},
		{"POST", "/release", `{"cost":1}`, "cost", "none is taken here"},
		{"DELETE", "", `[]`, "", "JSON object"},
	} {
		t.Run(c.path+c.body, func(t *testing.T) {
			t.Parallel()
			a := newAPI(t, 0)
			got := a.do(request(c.method, ticket+c.path, c.body))
			require.Equal(t, 400, got.status)
			p := problemOf(t, got)
			require.Equal(t, c.field, p.Field)
			require.Contains(t, p.Detail, c.detail)
			require.Zero(t, a.fake.calls)
		})
	}
}

func TestGrants_errors(t *testing.T) {
	t.Parallel()
	a := newAPI(t, 0)
	for _, c := range []struct {
		err    error
		status int
		reason string
	}{
		{admission.ErrUnknownGrant, 404, "unknown_ticket"},
		{admission.ErrUnknownDependency, 404, "unknown_dependency"},
		{admission.ErrNotCancellable, 409, "not_cancellable"},
		{admission.ErrGrantEnded, 409, "grant_ended"},
		{bucket.ErrClosed, 503, "shutting_down"},
		{bucket.ErrUnavailable, 503, "store_unavailable"},
	} {
		a.fake.grant = func(string, admission.GrantOp) (admission.Settlement, error) { return admission.Settlement{}, c.err }
		got := a.do(request(http.MethodDelete, ticket, ""))
		require.Equal(t, c.status, got.status)
		require.Equal(t, c.reason, problemOf(t, got).Reason)
	}
	calls := a.fake.calls
	for _, id := range []string{"a-b", "a%0Ab", strings.Repeat("a", 65), "%7Bx%7D", "a.b"} {
		r := request(http.MethodDelete, "/v1/dependencies/shop/tickets/"+id, "")
		require.Equal(t, "unknown_ticket", problemOf(t, a.do(r)).Reason, id)
	}
	require.Equal(t, calls, a.fake.calls)
}
