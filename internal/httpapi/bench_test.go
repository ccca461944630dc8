package httpapi_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/gorilla/mux"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/sluicehq/sluice/admission"
	"github.com/sluicehq/sluice/bucket"
	"github.com/sluicehq/sluice/internal/httpapi"
	"github.com/sluicehq/sluice/internal/telemetry"
)

const benchBody = `{"tenant":"acme","class":"interactive","cost":1}`

// fixed decides at once: what is measured is all but the gate.
type fixed struct {
	fake
	d admission.Decision
}

func (f *fixed) Admit(context.Context, string, admission.Ask) (admission.Decision, error) {
	return f.d, nil
}

// sink is a ResponseWriter that keeps nothing.
type sink struct {
	header http.Header
	status int
	n      int
}

func (s *sink) Header() http.Header         { return s.header }
func (s *sink) WriteHeader(status int)      { s.status = status }
func (s *sink) Write(p []byte) (int, error) { s.n += len(p); return len(p), nil }

type body struct{ at int }

func (b *body) Read(p []byte) (int, error) {
	if b.at == len(benchBody) {
		return 0, io.EOF
	}
	n := copy(p, benchBody[b.at:])
	b.at += n
	return n, nil
}
func (*body) Close() error { return nil }

func drive(b *testing.B, h http.Handler, status int) {
	b.Helper()
	r := request(http.MethodPost, admissions, benchBody)
	in, w := &body{}, &sink{header: http.Header{}}
	b.ReportAllocs()
	for b.Loop() {
		in.at, r.Body = 0, in
		clear(w.header)
		h.ServeHTTP(w, r)
	}
	require.Equal(b, status, w.status)
}

// BenchmarkAdmit compares the handler with a bare one on the same router that decodes and encodes the same JSON with
// encoding/json. The handler should cost at most 1.8 times as much.
func BenchmarkAdmit(b *testing.B) {
	daily := &bucket.Limit{Name: "daily", Kind: bucket.Quota, Size: 10000, Every: bucket.Calendar{Every: bucket.Day}}
	ok := admitted(
		admission.LimitState{Limit: rate(40, 1, 500_000), Remaining: 39, Reset: 500 * time.Millisecond, Pressed: true},
		admission.LimitState{Limit: daily, Remaining: 8211, Reset: 13 * time.Hour, Pressed: true},
	)
	no := refused(admission.ReasonLimit, 480*time.Millisecond,
		admission.LimitState{Limit: rate(40, 1, 500_000), Reset: 20 * time.Second, Wait: 480 * time.Millisecond, Pressed: true},
		admission.LimitState{Limit: daily, Remaining: 8211, Reset: 13 * time.Hour, Pressed: true},
	)
	no.BlockedBy = "rate"
	handler := func(d admission.Decision) http.Handler {
		m := telemetry.New(prometheus.NewRegistry(), telemetry.Options{})
		m.Policy("shop", 7, []string{"interactive"}, []*bucket.Limit{daily})
		f := &fixed{d: d}
		return httpapi.NewHandler(httpapi.Config{Gate: f, Catalog: f, Metrics: m})
	}
	b.Run("bare", func(b *testing.B) { drive(b, bare(), 200) })
	b.Run("admitted", func(b *testing.B) { drive(b, handler(ok), 200) })
	b.Run("refused", func(b *testing.B) { drive(b, handler(no), 429) })
}

func bare() http.Handler {
	type ask struct {
		Tenant string `json:"tenant"`
		Class  string `json:"class"`
		Cost   int64  `json:"cost"`
	}
	type limit struct {
		Name      string `json:"name"`
		Kind      string `json:"kind"`
		Per       string `json:"per"`
		Unit      string `json:"unit"`
		Limit     int64  `json:"limit"`
		Remaining int64  `json:"remaining"`
		FullInMS  int64  `json:"full_in_ms,omitempty"`
		EndsAt    string `json:"window_ends_at,omitempty"`
	}
	type reply struct {
		ID            string  `json:"id"`
		Outcome       string  `json:"outcome"`
		Source        string  `json:"source"`
		PolicyVersion int64   `json:"policy_version"`
		Limits        []limit `json:"limits"`
	}
	router := mux.NewRouter()
	router.HandleFunc("/v1/dependencies/{dependency}/admissions", func(w http.ResponseWriter, r *http.Request) {
		var a ask
		dec := json.NewDecoder(r.Body)
		dec.DisallowUnknownFields()
		if err := dec.Decode(&a); err != nil || mux.Vars(r)["dependency"] != "shop" || a.Tenant != "acme" {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusOK)
		_ = json.NewEncoder(w).Encode(reply{
			ID: "adm_3f9a0c6e2b7d41e88a10", Outcome: "admitted", Source: "redis", PolicyVersion: 7,
			Limits: []limit{
				{Name: "rate", Kind: "token_bucket", Per: "tenant", Unit: "requests", Limit: 40, Remaining: 39, FullInMS: 500},
				{Name: "daily", Kind: "quota", Per: "dependency", Unit: "requests", Limit: 10000, Remaining: 8211, EndsAt: "2026-12-02T00:00:00.250Z"},
			},
		})
	}).Methods(http.MethodPost)
	return router
}
