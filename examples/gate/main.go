// Command gate makes calls to a partner that allows only so many, from several workers at once, and is never refused:
// each worker asks Sluice before each call, and when told to wait, waits as long as it is told.
//
// Start `go run ./cmd/broker dev` in one terminal and `go run ./examples/gate` in another. What happens without asking
// shows `go run ./examples/gate -gate=false`.
package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"time"
)

// example is what the flags say.
type example struct {
	broker, partner, dependency string
	calls, workers              int
	gate                        bool
	client                      *http.Client
}

func main() {
	e := example{client: &http.Client{Timeout: 10 * time.Second}}
	flag.StringVar(&e.broker, "broker", "http://127.0.0.1:8080", "where Sluice is asked")
	flag.StringVar(&e.partner, "partner", "http://127.0.0.1:8081", "the fake partner of broker dev")
	flag.StringVar(&e.dependency, "dependency", "demo", "the policy that guards the partner")
	flag.IntVar(&e.calls, "calls", 20, "how many calls are made")
	flag.IntVar(&e.workers, "workers", 8, "how many workers make them")
	flag.BoolVar(&e.gate, "gate", true, "ask before each call")
	timeout := flag.Duration("timeout", 2*time.Minute, "give up after this time")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, *timeout)
	defer cancel()
	if err := e.run(ctx, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "gate:", err)
		os.Exit(1) //nolint:gocritic // nothing is left that the deferred calls would do
	}
}

// run makes all calls and says how many of them broke the partner's limit; that any did is an error.
func (e *example) run(ctx context.Context, out io.Writer) error {
	before, err := e.violations(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var workers sync.WaitGroup
	var next, refused atomic.Int64
	for range e.workers {
		workers.Go(func() {
			for next.Add(1) <= int64(e.calls) {
				if err := e.one(ctx, &refused); err != nil {
					stop(err)
					return
				}
			}
		})
	}
	workers.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	after, err := e.violations(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%d calls by %d workers in %.1fs, %d times told to wait: %d violations at the partner\n",
		e.calls, e.workers, time.Since(began).Seconds(), refused.Load(), after-before)
	if after > before {
		return errors.New("the partner's limit was broken")
	}
	return nil
}

// one asks until it is admitted, then calls.
func (e *example) one(ctx context.Context, refused *atomic.Int64) error {
	// With a key, an ask whose answer was lost can be repeated without taking a second token.
	key := rand.Text()
	for e.gate {
		wait, err := e.ask(ctx, key)
		if err != nil {
			return err
		}
		if wait == 0 {
			break
		}
		refused.Add(1)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return e.call(ctx)
}

// ask asks once. If it is admitted, wait is 0; otherwise it is after how long to ask again.
func (e *example) ask(ctx context.Context, key string) (wait time.Duration, err error) {
	url := e.broker + "/v1/dependencies/" + e.dependency + "/admissions"
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, http.NoBody)
	if err != nil {
		return 0, err
	}
	r.Header.Set("Idempotency-Key", `"`+key+`"`)
	var answer struct {
		RetryAfterMS int64  `json:"retry_after_ms"`
		Detail       string `json:"detail"`
	}
	status, err := e.do(r, &answer)
	switch {
	case err != nil:
		return 0, err
	case status == http.StatusOK:
		return 0, nil
	case answer.RetryAfterMS > 0: // 429: not now; 503: the broker or its store cannot tell now
		return time.Duration(answer.RetryAfterMS) * time.Millisecond, nil
	default:
		return 0, fmt.Errorf("asked and was answered %d: %s", status, answer.Detail)
	}
}

// call is the work itself. A 429 is what asking avoids; the partner counts it.
func (e *example) call(ctx context.Context) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, e.partner+"/orders", http.NoBody)
	if err != nil {
		return err
	}
	status, err := e.do(r, nil)
	if err == nil && status != http.StatusOK && status != http.StatusTooManyRequests {
		err = fmt.Errorf("the partner answered %d", status)
	}
	return err
}

// violations is how many calls over its limit the partner has counted.
func (e *example) violations(ctx context.Context) (int64, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, e.partner+"/stats", http.NoBody)
	if err != nil {
		return 0, err
	}
	var stats struct {
		Violations int64 `json:"violations"`
	}
	_, err = e.do(r, &stats)
	return stats.Violations, err
}

// do sends the request and reads the whole answer, so that the connection is used again.
func (e *example) do(r *http.Request, answer any) (status int, err error) {
	resp, err := e.client.Do(r)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return 0, err
	}
	if answer != nil {
		if err := json.Unmarshal(body, answer); err != nil {
			return 0, fmt.Errorf("%s answered %d and no JSON: %w", r.URL, resp.StatusCode, err)
		}
	}
	return resp.StatusCode, nil
}
