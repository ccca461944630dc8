// Package httpapi serves the gate over HTTP.
//
// A request goes one way: handler (routes, shedding, shutting down) -> scan and ask (the body, refused before the gate is
// called) -> Gate -> answer and ratelimit (body and headers of a decision) or problem (the one table from reasons and
// errors to statuses). Bodies are never logged.
package httpapi

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorilla/mux"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/sluicehq/sluice/api"
	"github.com/sluicehq/sluice/internal/telemetry"
)

// DefaultMaxInFlight is how many asks are served at once unless Config says otherwise.
const DefaultMaxInFlight = 4096

// Config is what a Handler is made of.
type Config struct {
	Gate    Gate
	Catalog Catalog
	// Metrics counts; nil: nothing that anyone sees. Gatherer is what /metrics shows; nil: nothing.
	Metrics  *telemetry.Metrics
	Gatherer prometheus.Gatherer
	// Logger gets faults and panics; nil: nobody does.
	Logger *slog.Logger
	// MaxInFlight is how many requests for admission are served at once; more get 503 "overloaded" before their body is
	// read. If zero, DefaultMaxInFlight.
	MaxInFlight int
}

// Handler serves the API. It is safe for concurrent use.
type Handler struct {
	gate    Gate
	catalog Catalog
	metrics *telemetry.Metrics
	log     *slog.Logger
	router  *mux.Router
	rows    []row
	now     func() time.Time // measures how long things take; decisions know the Redis clock only

	most     int64
	inFlight atomic.Int64
	draining atomic.Bool
	refusing atomic.Bool

	scratch sync.Pool // *scratch
	windows windows
	fixed   fixedHeaders
}

// fixedHeaders are values that all answers share: net/http only reads them.
type fixedHeaders struct{ json, problem, noStore, yes, close []string }

// NewHandler makes the handler of all routes.
func NewHandler(c Config) *Handler {
	//nolint:forbidigo // measures how long things take, decides nothing
	h := &Handler{
		gate: c.Gate, catalog: c.Catalog, metrics: c.Metrics, log: c.Logger,
		rows: table(), now: time.Now, most: int64(c.MaxInFlight),
		fixed: fixedHeaders{
			json: []string{"application/json"}, problem: []string{"application/problem+json"},
			noStore: []string{"no-store"}, yes: []string{"true"}, close: []string{"close"},
		},
	}
	if h.most <= 0 {
		h.most = DefaultMaxInFlight
	}
	gatherer := c.Gatherer
	if gatherer == nil {
		gatherer = prometheus.NewRegistry()
	}
	if h.metrics == nil {
		h.metrics = telemetry.New(prometheus.NewRegistry(), telemetry.Options{})
	}
	if h.log == nil {
		h.log = slog.New(slog.DiscardHandler)
	}
	h.scratch.New = func() any { return &scratch{} }
	h.router = h.routes(gatherer)
	return h
}

// routes lists everything that is served. api/openapi.yaml says the same, and a test compares them.
func (h *Handler) routes(gatherer prometheus.Gatherer) *mux.Router {
	r := mux.NewRouter().SkipClean(true).UseEncodedPath()
	r.NotFoundHandler = http.HandlerFunc(h.noRoute)
	r.MethodNotAllowedHandler = http.HandlerFunc(h.wrongMethod)
	post := func(path string, f http.HandlerFunc) { r.Path(path).Methods(http.MethodPost).HandlerFunc(f) }
	get := func(path string, f http.HandlerFunc) {
		r.Path(path).Methods(http.MethodGet, http.MethodHead).HandlerFunc(f)
	}
	const dependency = "/v1/dependencies/{dependency}"
	const ticket = dependency + "/tickets/{id}"
	post(dependency+"/admissions", h.shed(h.admit))
	post(dependency+"/admissions/batch", h.shed(h.admitBatch))
	post(ticket+"/settle", h.settle)
	post(ticket+"/release", h.release)
	post(ticket+"/extend", h.extend)
	r.Path(ticket).Methods(http.MethodDelete).HandlerFunc(h.cancel)
	get("/v1/dependencies", h.dependencies)
	get(dependency, h.dependency)
	get("/livez", h.livez)
	get("/readyz", h.readyz)
	get("/metrics", promhttp.HandlerFor(gatherer, promhttp.HandlerOpts{EnableOpenMetrics: true}).ServeHTTP)
	get("/openapi.yaml", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/yaml") // RFC 9512
		_, _ = w.Write(api.OpenAPI())
	})
	return r
}

// ServeHTTP answers one request.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	defer h.catch(w, r)
	if h.draining.Load() {
		// A kept connection would be cut under its next request.
		w.Header()["Connection"] = h.fixed.close
	}
	h.router.ServeHTTP(w, r)
}

// Drain makes /readyz fail from now on, so that load balancers stop sending; asks are still served. Refuse comes later.
func (h *Handler) Drain() { h.draining.Store(true) }

// Refuse answers asks with 503 "shutting_down" from now on. Grants can still be settled, released and cancelled: who
// holds one must be able to give it back.
func (h *Handler) Refuse() {
	h.draining.Store(true)
	h.refusing.Store(true)
}

// shed lets at most so many requests through at once, and none when shutting down. It does not read bodies.
func (h *Handler) shed(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		defer h.inFlight.Add(-1)
		n := h.inFlight.Add(1)
		switch {
		case h.refusing.Load():
			h.fail(w, r, mux.Vars(r)["dependency"], "", errShuttingDown)
		case n > h.most:
			h.fail(w, r, mux.Vars(r)["dependency"], "", errBusy)
		default:
			next(w, r)
		}
	}
}

// catch turns a panic into a 500. What was panicked with may hold a part of a body, so it is logged only where the
// runtime made it.
func (h *Handler) catch(w http.ResponseWriter, r *http.Request) {
	v := recover()
	if v == nil {
		return
	}
	if v == http.ErrAbortHandler { //nolint:errorlint // net/http compares it the same way
		panic(v)
	}
	h.metrics.Panicked()
	what := fmt.Sprintf("%T", v)
	var fault runtime.Error
	if err, ok := v.(error); ok && errors.As(err, &fault) {
		what = fault.Error()
	}
	h.log.ErrorContext(r.Context(), "panic in a handler",
		slog.String("panic", what), slog.String("route", h.routeOf(r)), slog.String("stack", string(debug.Stack())))
	h.problem(w, &h.rows[len(h.rows)-1], "", h.rows[len(h.rows)-1].detail)
}

// routeOf is the pattern of the request's route: paths may hold what should not be logged.
func (h *Handler) routeOf(r *http.Request) string {
	var match mux.RouteMatch
	if h.router.Match(r, &match) && match.Route != nil {
		if path, err := match.Route.GetPathTemplate(); err == nil {
			return r.Method + " " + path
		}
	}
	return r.Method
}

func (h *Handler) noRoute(w http.ResponseWriter, r *http.Request) { h.fail(w, r, "", "", errNoRoute) }

// wrongMethod tells which methods the path takes, RFC 9110 section 15.5.6.
func (h *Handler) wrongMethod(w http.ResponseWriter, r *http.Request) {
	allow := ""
	for _, method := range []string{http.MethodDelete, http.MethodGet, http.MethodHead, http.MethodPost} {
		try := r.Clone(r.Context())
		try.Method = method
		var match mux.RouteMatch
		if h.router.Match(try, &match) && match.MatchErr == nil {
			if allow != "" {
				allow += ", "
			}
			allow += method
		}
	}
	w.Header().Set("Allow", allow)
	h.fail(w, r, "", "", errMethod)
}

// again is when to come again where nothing better is known: a second and jitter, so that not all come together.
func again() time.Duration {
	return time.Second + rand.N(time.Second)
}
