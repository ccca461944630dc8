package httpapi_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/sluicehq/sluice/admission"
	"github.com/sluicehq/sluice/bucket"
)

func TestErrors_areMappedByOneTable(t *testing.T) {
	t.Parallel()
	const reduced = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
	for _, c := range []struct {
		err          error
		status       int
		reason, kind string
		detail       string
	}{
		{&admission.FieldError{Field: "class", Message: "must be one of default, bulk"}, 400, "invalid", "about:blank", "class must be one of default, bulk"},
		{admission.ErrUnknownDependency, 404, "unknown_dependency", "about:blank", "GET /v1/dependencies"},
		{bucket.ErrOverloaded, 503, "overloaded", reduced, "at once"},
		{bucket.ErrUnavailable, 503, "store_unavailable", reduced, "store"},
		{context.DeadlineExceeded, 503, "store_unavailable", reduced, "store"},
		{errors.New("canary: password=hunter2"), 500, "", "about:blank", "went wrong"},
	} {
		t.Run(c.err.Error(), func(t *testing.T) {
			t.Parallel()
			a := newAPI(t, 0)
			a.fake.admit = func(context.Context, admission.Ask) (admission.Decision, error) {
				return admission.Decision{}, fmt.Errorf("wrapped: %w", c.err)
			}
			got := a.post(admissions, `{"tenant":"canary"}`)
			p := problemOf(t, got)
			require.Equal(t, c.status, got.status)
			require.Equal(t, c.reason, p.Reason)
			require.Equal(t, c.kind, p.Type)
			require.Contains(t, p.Detail, c.detail)
			require.NotContains(t, got.body, "canary")
			require.NotContains(t, got.body, "wrapped")
			if c.status == 503 {
				retry, err := strconv.Atoi(got.header.Get("Retry-After"))
				require.NoError(t, err)
				require.InDelta(t, 1500, p.RetryAfterMS, 501)
				require.Equal(t, int((p.RetryAfterMS+999)/1000), retry)
			} else {
				require.Empty(t, got.header.Get("Retry-After"))
			}
			require.Equal(t, c.status == 500, strings.Contains(a.log.String(), "hunter2"), "faults are logged, and only they")
			require.NotContains(t, a.log.String(), `"tenant"`, "bodies are never logged")
		})
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	const quota = "https://iana.org/assignments/http-problem-types#quota-exceeded"
	state := admission.LimitState{Limit: rate(40, 1, 500_000), Wait: 480 * time.Millisecond, Reset: 20 * time.Second, Pressed: true}
	for reason, want := range map[admission.Reason]struct {
		status int
		kind   string
		retry  bool
	}{
		admission.ReasonLimit:            {429, quota, true},
		admission.ReasonQuota:            {429, quota, true},
		admission.ReasonCostExceeds:      {422, "about:blank", false},
		admission.ReasonMismatch:         {422, "about:blank", false},
		admission.ReasonStoreUnavailable: {503, "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity", true},
	} {
		t.Run(string(reason), func(t *testing.T) {
			t.Parallel()
			a := newAPI(t, 0)
			a.fake.admit = func(context.Context, admission.Ask) (admission.Decision, error) {
				d := refused(reason, 480*time.Millisecond, state)
				d.BlockedBy = "rate"
				return d, nil
			}
			got := a.post(admissions, `{}`)
			p := problemOf(t, got)
			require.Equal(t, want.status, got.status)
			require.Equal(t, want.kind, p.Type)
			require.Equal(t, "rejected", p.Outcome)
			require.Equal(t, string(reason), p.Reason)
			require.Contains(t, got.body, `"violated-policies":["rate"]`)
			require.Contains(t, got.body, `"limits":[{"name":"rate"`)
			if want.retry {
				require.EqualValues(t, 480, p.RetryAfterMS)
				require.Equal(t, "1", got.header.Get("Retry-After"))
				require.Contains(t, got.body, `"available_in_ms":480`)
			} else {
				require.Empty(t, got.header.Get("Retry-After"))
				require.NotContains(t, got.body, "retry_after_ms")
			}
			require.InDelta(t, 1, testutil.ToFloat64(counter(t, a, "default", "rejected", string(reason), "redis")), 0)
		})
	}
}

func TestAdmitted_body(t *testing.T) {
	t.Parallel()
	a := newAPI(t, 0)
	a.fake.admit = func(context.Context, admission.Ask) (admission.Decision, error) {
		d := admitted(admission.LimitState{Limit: rate(40, 1, 500_000), Remaining: 39, Reset: 500 * time.Millisecond, Pressed: true})
		d.StartIn = 1500 * time.Microsecond
		d.StartAt = now.Add(d.StartIn)
		d.Taken = map[string]int64{"requests": 1}
		d.Grant = &admission.Grant{ExpiresAt: now.Add(30 * time.Second)}
		d.Replayed, d.StoreMode, d.Source = true, "open", admission.SourceLocal
		return d, nil
	}
	got := a.post(admissions, `{}`)
	require.Equal(t, "true", got.header.Get("Idempotent-Replayed"))
	require.JSONEq(t, `{"id":"adm_3f9a0c6e2b7d41e88a10","outcome":"admitted","source":"local","store_mode":"open","policy_version":7,`+
		`"limits":[{"name":"rate","kind":"token_bucket","per":"tenant","unit":"requests","limit":40,"remaining":39,"full_in_ms":500}],`+
		`"taken":{"requests":1},"start_at":"2026-12-01T11:00:00.252Z","start_in_ms":2,"grant":{"expires_at":"2026-12-01T11:00:30.250Z"}}`, got.body)
}

func TestEverythingElse_isAProblem(t *testing.T) {
	t.Parallel()
	a := newAPI(t, 0)
	for _, c := range []struct {
		method, path string
		status       int
		allow        string
	}{
		{"GET", "/", 404, ""},
		{"GET", "/v2/dependencies", 404, ""},
		{"POST", "/v1/dependencies/shop/admissions/", 404, ""},
		{"POST", "/v1//dependencies/shop/admissions", 404, ""},
		{"POST", "/v1/dependencies/../dependencies/shop/admissions", 404, ""},
		{"GET", admissions, 405, "POST"},
		{"PUT", "/v1/dependencies", 405, "GET, HEAD"},
		{"OPTIONS", "/livez", 405, "GET, HEAD"},
		{"GET", "/v1/dependencies/shop/tickets/adm_1", 405, "DELETE"},
	} {
		got := a.do(request(c.method, c.path, ""))
		require.Equal(t, c.status, got.status, c.path)
		require.Equal(t, c.allow, got.header.Get("Allow"), c.path)
		problemOf(t, got)
	}
	for _, name := range []string{"Shop", "a%2Fb", "%7Dx", "a%0Ab", strings.Repeat("a", 64), "%ff", ".."} {
		for _, path := range []string{"/admissions", "/admissions/batch", "/tickets/adm_1/release"} {
			r := request("POST", "/", "{}")
			r.URL.Path, r.URL.RawPath = mustUnescape(t, "/v1/dependencies/"+name+path), "/v1/dependencies/"+name+path
			w := httptest.NewRecorder()
			a.handler.ServeHTTP(w, r)
			require.Equal(t, 404, w.Code, name)
			require.Contains(t, w.Body.String(), "unknown_dependency", name)
		}
	}
	require.Zero(t, a.fake.calls)
}

func mustUnescape(t *testing.T, path string) string {
	t.Helper()
	r, err := http.NewRequest(http.MethodGet, "http://x"+path, http.NoBody)
	require.NoError(t, err)
	return r.URL.Path
}

func TestShedding(t *testing.T) {
	t.Parallel()
	a := newAPI(t, 2)
	entered, leave := make(chan struct{}), make(chan struct{})
	a.fake.admit = func(context.Context, admission.Ask) (admission.Decision, error) {
		entered <- struct{}{}
		<-leave
		return admitted(), nil
	}
	done := make(chan int, 2)
	for range 2 {
		go func() {
			w := httptest.NewRecorder()
			a.handler.ServeHTTP(w, request("POST", admissions, `{}`))
			done <- w.Code
		}()
		<-entered
	}
	for _, path := range []string{admissions, admissions + "/batch"} {
		r := request("POST", path, "")
		body := &untouched{}
		r.Body, r.ContentLength = body, 100
		got := a.do(r)
		require.Equal(t, 503, got.status)
		require.Equal(t, "overloaded", problemOf(t, got).Reason)
		require.NotEmpty(t, got.header.Get("Retry-After"))
		require.False(t, body.read)
	}
	require.Equal(t, 200, a.post("/v1/dependencies/shop/tickets/adm_1/release", "").status, "giving back is never shed")
	close(leave)
	require.Equal(t, 200, <-done)
	require.Equal(t, 200, <-done)
	a.fake.mu.Lock()
	a.fake.admit = nil
	a.fake.mu.Unlock()
	require.Equal(t, 200, a.post(admissions, `{}`).status)
	require.InDelta(t, 2, testutil.ToFloat64(counter(t, a, "default", "rejected", "overloaded", "")), 0)
}

type untouched struct{ read bool }

func (u *untouched) Read([]byte) (int, error) { u.read = true; return 0, io.EOF }
func (*untouched) Close() error               { return nil }

func TestDrain(t *testing.T) {
	t.Parallel()
	a := newAPI(t, 0)
	require.Equal(t, 200, a.do(request("GET", "/readyz", "")).status)
	a.handler.Drain()
	got := a.do(request("GET", "/readyz", ""))
	require.Equal(t, 503, got.status)
	require.Equal(t, []string{"shutting down"}, problemOf(t, got).NotReady)
	require.Equal(t, 200, a.post(admissions, `{}`).status, "readiness fails first")
	a.handler.Refuse()
	for _, path := range []string{admissions, admissions + "/batch"} {
		got = a.post(path, `{}`)
		require.Equal(t, 503, got.status)
		require.Equal(t, "shutting_down", problemOf(t, got).Reason)
	}
	require.Equal(t, 200, a.post("/v1/dependencies/shop/tickets/adm_1/release", "").status)
	require.Equal(t, 200, a.do(request("GET", "/livez", "")).status)
}

func TestPanics(t *testing.T) {
	t.Parallel()
	a := newAPI(t, 0)
	a.fake.admit = func(_ context.Context, ask admission.Ask) (admission.Decision, error) {
		if ask.Tenant == "canary" {
			panic("body was " + ask.Tenant)
		}
		return admission.Decision{}, fmt.Errorf("%d", []int{}[len(ask.Tenant)])
	}
	for _, body := range []string{`{"tenant":"canary"}`, `{}`} {
		got := a.post(admissions, body)
		require.Equal(t, 500, got.status)
		problemOf(t, got)
	}
	require.Contains(t, a.log.String(), "panic in a handler")
	require.Contains(t, a.log.String(), "index out of range")
	require.Contains(t, a.log.String(), "handler_test.go")
	require.Contains(t, a.log.String(), `"route":"POST /v1/dependencies/{dependency}/admissions"`)
	require.NotContains(t, a.log.String(), "canary")
	metrics := a.do(request("GET", "/metrics", ""))
	require.Contains(t, metrics.body, "sluice_panics_total 2")
	a.fake.admit = nil
	require.Equal(t, 200, a.post(admissions, `{}`).status)
}

// Who has gone is neither answered nor counted, and is no fault.
func TestCallerGone(t *testing.T) {
	t.Parallel()
	a := newAPI(t, 0)
	a.fake.admit = func(ctx context.Context, _ admission.Ask) (admission.Decision, error) {
		return admission.Decision{}, ctx.Err()
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w := httptest.NewRecorder()
	require.PanicsWithValue(t, http.ErrAbortHandler, func() {
		a.handler.ServeHTTP(w, request("POST", admissions, `{}`).WithContext(ctx))
	})
	require.Zero(t, w.Body.Len())
	require.Empty(t, a.log.String())
	require.NotContains(t, a.do(request("GET", "/metrics", "")).body, "sluice_decisions_total{")
}

func TestMetrics_count(t *testing.T) {
	t.Parallel()
	a := newAPI(t, 0)
	a.post(admissions, `{"class":"bulk"}`)
	a.post(admissions, `{"class":"bulk","dry_run":true}`)
	a.post(admissions, `{"class":"made-up-by-a-caller","tenant":"made-up-too"}`)
	a.post(admissions, `{"cost":-1}`)
	a.post("/v1/dependencies/made-up/admissions", `{"cost":-1}`)
	a.post(admissions+"/batch", `{"items":[{"class":"bulk"},{}]}`)
	require.InDelta(t, 2, testutil.ToFloat64(counter(t, a, "bulk", "admitted", "", "redis")), 0)
	require.InDelta(t, 1, testutil.ToFloat64(counter(t, a, "default", "admitted", "", "redis")), 0)
	require.InDelta(t, 1, testutil.ToFloat64(counter(t, a, "", "admitted", "", "redis")), 0)
	got := a.do(request("GET", "/metrics", ""))
	require.Equal(t, 200, got.status)
	require.NotContains(t, got.body, "made-up")
	require.Contains(t, got.body, `reason="invalid"`)
	require.Contains(t, got.body, `sluice_decision_seconds_count{source="redis"} 2`)
}

func TestOperations(t *testing.T) {
	t.Parallel()
	a := newAPI(t, 0)
	a.fake.notReady = []string{"the store does not answer"}
	require.Equal(t, 200, a.do(request("GET", "/livez", "")).status)
	got := a.do(request("GET", "/readyz", ""))
	require.Equal(t, 503, got.status)
	require.Equal(t, a.fake.notReady, problemOf(t, got).NotReady)
	got = a.do(request("GET", "/openapi.yaml", ""))
	require.Equal(t, 200, got.status)
	require.True(t, strings.HasPrefix(got.body, "openapi: 3.1.0"))
	for _, path := range []string{"/livez", "/v1/dependencies", "/openapi.yaml"} {
		require.Equal(t, 200, a.do(request("HEAD", path, "")).status)
	}
}

// TestMetricsFormats: who asks for OpenMetrics gets it.
func TestMetricsFormats(t *testing.T) {
	t.Parallel()
	a := newAPI(t, 10)
	for accept, want := range map[string]string{"": "text/plain", "application/openmetrics-text; version=1.0.0": "application/openmetrics-text"} {
		r := request("GET", "/metrics", "")
		r.Header.Set("Accept", accept)
		w := httptest.NewRecorder() // the check of answers knows no OpenMetrics
		a.handler.ServeHTTP(w, r)
		require.Equal(t, 200, w.Code)
		require.Contains(t, w.Header().Get("Content-Type"), want)
	}
}
