package httpapi_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/sluicehq/sluice/admission"
	"github.com/sluicehq/sluice/bucket"
	"github.com/sluicehq/sluice/internal/httpapi"
	"github.com/sluicehq/sluice/internal/httpapi/apitest"
	"github.com/sluicehq/sluice/internal/telemetry"
)

// fake answers as it is told, and remembers what it was asked: these tests are about HTTP. It is no store; what the gate
// decides is tested on Redis.
type fake struct {
	mu    sync.Mutex
	asks  []admission.Ask
	ops   []admission.GrantOp
	all   bool
	calls int

	admit    func(ctx context.Context, a admission.Ask) (admission.Decision, error)
	batch    func(asks []admission.Ask) ([]admission.Decision, error)
	grant    func(id string, op admission.GrantOp) (admission.Settlement, error)
	overview func(name string) (admission.Overview, error)
	notReady []string
}

func (f *fake) Admit(ctx context.Context, _ string, a admission.Ask) (admission.Decision, error) {
	f.mu.Lock()
	f.calls++
	f.asks = append(f.asks, a)
	admit := f.admit
	f.mu.Unlock()
	if admit == nil {
		return admitted(), nil
	}
	return admit(ctx, a)
}

func (f *fake) AdmitBatch(_ context.Context, _ string, asks []admission.Ask, all bool) ([]admission.Decision, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls++
	f.asks, f.all = append(f.asks, asks...), all
	if f.batch != nil {
		return f.batch(asks)
	}
	out := make([]admission.Decision, len(asks))
	for i := range out {
		out[i] = admitted()
	}
	return out, nil
}

func (f *fake) Grant(_ context.Context, _, id string, op admission.GrantOp) (admission.Settlement, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls++
	f.ops = append(f.ops, op)
	if f.grant != nil {
		return f.grant(id, op)
	}
	return admission.Settlement{ID: id}, nil
}

func (*fake) Dependencies(context.Context) ([]admission.Summary, error) {
	return []admission.Summary{{Name: "shop", Version: 7, Owners: []string{"team"}}, {Name: "empty", Version: 1}}, nil
}

func (f *fake) Dependency(_ context.Context, name string) (admission.Overview, error) {
	if f.overview == nil {
		return admission.Overview{}, admission.ErrUnknownDependency
	}
	return f.overview(name)
}

func (f *fake) Ready(context.Context) []string { return f.notReady }

// api is a handler behind a client that checks every answer against api/openapi.yaml.
type api struct {
	t        *testing.T
	fake     *fake
	handler  *httpapi.Handler
	check    *apitest.Validator
	registry *prometheus.Registry
	metrics  *telemetry.Metrics
	log      *lockedBuffer
}

// description is read once for all tests: it is large.
var description = sync.OnceValues(apitest.New)

func newAPI(t *testing.T, maxInFlight int) *api {
	t.Helper()
	check, err := description()
	require.NoError(t, err)
	a := &api{t: t, fake: &fake{}, check: check, registry: prometheus.NewPedanticRegistry(), log: &lockedBuffer{}}
	a.metrics = telemetry.New(a.registry, telemetry.Options{})
	a.metrics.Policy("shop", 7, []string{"bulk"}, nil)
	a.handler = httpapi.NewHandler(httpapi.Config{
		Gate: a.fake, Catalog: a.fake, Metrics: a.metrics, Gatherer: a.registry, MaxInFlight: maxInFlight,
		Logger: slog.New(slog.NewJSONHandler(a.log, nil)),
	})
	return a
}

type answer struct {
	status int
	header http.Header
	body   string
}

func (a *api) do(r *http.Request) answer {
	a.t.Helper()
	w := httptest.NewRecorder()
	a.handler.ServeHTTP(w, r)
	got := answer{w.Code, w.Result().Header, w.Body.String()}
	if r.Method == http.MethodHead {
		got.body = ""
	}
	require.NoError(a.t, a.check.Check(r, got.status, got.header, []byte(got.body)))
	return got
}

func (a *api) post(path, body string) answer {
	a.t.Helper()
	return a.do(request(http.MethodPost, path, body))
}

func request(method, path, body string) *http.Request {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	return r
}

const admissions = "/v1/dependencies/shop/admissions"

var now = time.Date(2026, 12, 1, 11, 0, 0, 250_000_000, time.UTC)

func admitted(limits ...admission.LimitState) admission.Decision {
	return admission.Decision{
		ID: "adm_3f9a0c6e2b7d41e88a10", Outcome: admission.OutcomeAdmitted, Source: admission.SourceRedis,
		StoreMode: "redis", PolicyVersion: 7, Now: now, Limits: limits,
	}
}

func refused(reason admission.Reason, retry time.Duration, limits ...admission.LimitState) admission.Decision {
	d := admitted(limits...)
	d.ID, d.Outcome, d.Reason, d.RetryAfter, d.Available = "", admission.OutcomeRejected, reason, retry, retry
	for _, l := range limits {
		if l.Wait > 0 && !l.Limit.Shadow {
			d.Violated = append(d.Violated, l.Limit.Name)
		}
	}
	return d
}

func rate(size, n, p int64) *bucket.Limit {
	return &bucket.Limit{
		Name: "rate", Kind: bucket.TokenBucket, Per: bucket.PerTenant, Unit: bucket.Requests, Size: size, Refill: bucket.Rate{N: n, P: p},
	}
}

type lockedBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

var _ io.Writer = (*lockedBuffer)(nil)
