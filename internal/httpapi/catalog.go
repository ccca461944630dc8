package httpapi

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/gorilla/mux"

	"github.com/sluicehq/sluice/admission"
	"github.com/sluicehq/sluice/bucket"
)

type summaryJSON struct {
	Name          string   `json:"name"`
	Description   string   `json:"description,omitempty"`
	PolicyVersion int64    `json:"policy_version"`
	Owners        []string `json:"owners"`
}

type overviewJSON struct {
	summaryJSON
	StoreMode string      `json:"store_mode"`
	Classes   []string    `json:"classes"`
	Limits    []limitJSON `json:"limits"`
}

// limitJSON is a limit with its parameters, in the words of the policy file but for limit, which is its size whatever the
// kind; and what is left of it where one number says that.
type limitJSON struct {
	Name        string   `json:"name"`
	Kind        string   `json:"kind"`
	Per         string   `json:"per"`
	Classes     []string `json:"classes,omitempty"`
	Unit        string   `json:"unit,omitempty"`
	Limit       int64    `json:"limit"`
	Refill      string   `json:"refill,omitempty"`
	Oversize    string   `json:"oversize,omitempty"`
	MaxHold     string   `json:"max_hold,omitempty"`
	Every       string   `json:"every,omitempty"`
	TimeZone    string   `json:"time_zone,omitempty"`
	StartsAt    string   `json:"starts_at,omitempty"`
	Weekday     string   `json:"weekday,omitempty"`
	DayOfMonth  int      `json:"day_of_month,omitempty"`
	Window      string   `json:"window,omitempty"`
	OnExceeded  string   `json:"on_exceeded,omitempty"`
	Shadow      bool     `json:"shadow,omitempty"`
	Remaining   *int64   `json:"remaining,omitempty"`
	FullInMS    *int64   `json:"full_in_ms,omitempty"`
	WindowEndAt string   `json:"window_ends_at,omitempty"`
}

// dependencies serves GET /v1/dependencies.
func (h *Handler) dependencies(w http.ResponseWriter, r *http.Request) {
	all, err := h.catalog.Dependencies(r.Context())
	if err != nil {
		h.fail(w, r, "", "", err)
		return
	}
	list := struct {
		Dependencies []summaryJSON `json:"dependencies"`
	}{Dependencies: []summaryJSON{}}
	for i := range all {
		list.Dependencies = append(list.Dependencies, summaryOf(&all[i]))
	}
	h.json(w, r, http.StatusOK, list)
}

// dependency serves GET /v1/dependencies/{dependency}.
func (h *Handler) dependency(w http.ResponseWriter, r *http.Request) {
	name := mux.Vars(r)["dependency"]
	if !validName(name) {
		h.fail(w, r, "", "", admission.ErrUnknownDependency)
		return
	}
	o, err := h.catalog.Dependency(r.Context(), name)
	if err != nil {
		h.fail(w, r, "", "", err)
		return
	}
	out := overviewJSON{
		summaryJSON: summaryOf(&o.Summary), StoreMode: o.StoreMode,
		Classes: append([]string{}, o.Classes...), Limits: []limitJSON{},
	}
	for _, l := range o.Limits {
		limit := limitOf(l)
		for i := range o.States {
			if o.States[i].Limit.Name == l.Name {
				limit.show(&o.States[i], o.Now)
			}
		}
		out.Limits = append(out.Limits, limit)
	}
	h.json(w, r, http.StatusOK, out)
}

// livez says that the process answers. It touches nothing else.
func (h *Handler) livez(w http.ResponseWriter, r *http.Request) {
	h.json(w, r, http.StatusOK, map[string]string{"status": "alive"})
}

type notReadyJSON struct {
	Type     string   `json:"type"`
	Title    string   `json:"title"`
	Status   int      `json:"status"`
	Detail   string   `json:"detail"`
	NotReady []string `json:"not_ready"`
}

// readyz says whether asks should be sent here, and if not, why.
func (h *Handler) readyz(w http.ResponseWriter, r *http.Request) {
	var missing []string
	if h.draining.Load() {
		missing = []string{"shutting down"}
	} else {
		missing = h.catalog.Ready(r.Context())
	}
	if len(missing) == 0 {
		h.json(w, r, http.StatusOK, map[string]string{"status": "ready"})
		return
	}
	w.Header()["Content-Type"] = h.fixed.problem
	h.json(w, r, http.StatusServiceUnavailable, notReadyJSON{
		Type: string(typeBlank), Title: http.StatusText(http.StatusServiceUnavailable),
		Status: http.StatusServiceUnavailable, Detail: "This broker is not ready.", NotReady: missing,
	})
}

// json writes what is asked for too rarely to be worth appending by hand.
func (h *Handler) json(w http.ResponseWriter, r *http.Request, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		h.fail(w, r, "", "", err)
		return
	}
	s := h.borrow()
	defer h.giveBack(s)
	s.out = append(s.out, body...)
	contentType := w.Header()["Content-Type"]
	if contentType == nil {
		contentType = h.fixed.json
	}
	h.send(w, s, status, contentType)
}

func summaryOf(s *admission.Summary) summaryJSON {
	return summaryJSON{
		Name: s.Name, Description: s.Description, PolicyVersion: s.Version, Owners: append([]string{}, s.Owners...),
	}
}

func limitOf(l *bucket.Limit) limitJSON {
	j := limitJSON{
		Name: l.Name, Kind: string(l.Kind), Per: string(perOf(l)), Classes: l.Classes, Limit: l.Size,
		OnExceeded: string(l.OnExceeded), Shadow: l.Shadow,
	}
	if l.Kind != bucket.Concurrency {
		j.Unit = unitOf(l)
	}
	switch l.Kind {
	case bucket.TokenBucket:
		j.Refill = l.Refill.String()
		if l.Debt {
			j.Oversize = "debt"
		}
	case bucket.Concurrency:
		j.MaxHold = l.Hold.String()
	case bucket.Quota:
		j.every(l.Every)
	case bucket.SlidingWindow, bucket.SlidingLog:
		j.Window = l.Window.String()
	}
	return j
}

func (j *limitJSON) every(c bucket.Calendar) {
	j.Every, j.TimeZone = string(c.Every), time.UTC.String()
	if c.Location != nil {
		j.TimeZone = c.Location.String()
	}
	if c.StartsAt > 0 {
		j.StartsAt = time.Time{}.Add(c.StartsAt).Format("15:04:05")
	}
	switch c.Every {
	case bucket.Week:
		j.Weekday = weekday(c.Weekday)
	case bucket.Month:
		j.DayOfMonth = max(1, c.DayOfMonth)
	case bucket.Minute, bucket.Hour, bucket.Day:
	}
}

func weekday(d time.Weekday) string {
	return [...]string{"sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday"}[d]
}

func (j *limitJSON) show(s *admission.LimitState, now time.Time) {
	j.Remaining = &s.Remaining
	switch {
	case s.Limit.Kind == bucket.Concurrency || s.Reset == bucket.Forever:
	case s.Limit.Kind == bucket.Quota:
		j.WindowEndAt = now.Add(s.Reset).UTC().Format("2006-01-02T15:04:05.000Z07:00")
	default:
		full := ceilMS(s.Reset)
		j.FullInMS = &full
	}
}
