package main

import (
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluicehq/sluice/internal/redistest"
)

// TestP8_retryAfterIsTrue: who is refused and comes back when told, by the body or by the header, is admitted if nobody
// else asked, whatever refused it; the header is the body's time in whole seconds, rounded up.
func TestP8_retryAfterIsTrue(t *testing.T) {
	t.Parallel()
	b, _ := serve(t, redistest.Start(t).URL(), `
dependencies:
  rate:   {limits: [{name: l, kind: token_bucket, capacity: 2, refill: 3/s}], store: {timeout: 10s}}
  slots:  {limits: [{name: l, kind: concurrency, max: 1, max_hold: 400ms}], store: {timeout: 10s}}
  log:    {limits: [{name: l, kind: sliding_log, limit: 2, window: 500ms}], store: {timeout: 10s}}
  window: {limits: [{name: l, kind: sliding_window, limit: 2, window: 500ms}], store: {timeout: 10s}}
`)
	for _, dependency := range []string{"rate", "slots", "log", "window"} {
		for range 3 {
			var refused answer
			eventually(t, "refused", func() bool {
				refused = b.ask(dependency, "")
				return refused.status == http.StatusTooManyRequests
			})
			require.Equal(t, "l", refused.Blocked)
			require.Positive(t, refused.RetryMS)
			seconds, err := strconv.ParseInt(refused.header.Get("Retry-After"), 10, 64)
			require.NoError(t, err)
			require.Equal(t, (refused.RetryMS+999)/1000, seconds)
			time.Sleep(time.Duration(refused.RetryMS) * time.Millisecond)
			again := b.ask(dependency, "")
			require.Equal(t, http.StatusOK, again.status, again.text)
		}
	}
}
