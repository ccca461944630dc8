package partner

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// statsPath is not a call: it tells what was counted.
const statsPath = "/stats"

// statsJSON is what GET /stats answers.
type statsJSON struct {
	Limit      string  `json:"limit"`
	Calls      int64   `json:"calls"`
	Violations int64   `json:"violations"`
	ArrivalsMS []int64 `json:"arrivals_ms"` // of the latest calls, from the first that is kept, in its order
}

// ServeHTTP answers GET /stats with what was counted. Everything else is a call: 200, or 429 with Retry-After in whole
// seconds, rounded up, RFC 9110 section 10.2.3.
func (p *Partner) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	if r.URL.Path == statsPath {
		p.serveStats(w, r)
		return
	}
	ok, retry := p.Call()
	if !ok {
		w.Header().Set("Retry-After", strconv.FormatInt(ceilDiv(int64(retry), int64(time.Second)), 10))
		w.WriteHeader(http.StatusTooManyRequests)
		fmt.Fprintln(w, `{"error":"over the limit"}`)
		return
	}
	fmt.Fprintln(w, `{"ok":true}`)
}

func (p *Partner) serveStats(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	s := p.Stats()
	out := statsJSON{Limit: p.Limit(), Calls: s.Calls, Violations: s.Violations, ArrivalsMS: []int64{}}
	for _, at := range s.Arrivals {
		out.ArrivalsMS = append(out.ArrivalsMS, at.Sub(s.Arrivals[0]).Milliseconds())
	}
	_ = json.NewEncoder(w).Encode(out) // who has gone cannot be told
}
