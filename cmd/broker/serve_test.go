package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluicehq/sluice/internal/redistest"
)

// slowly is a policy of one bucket that refills too slowly to be noticed.
func slowly(capacity int) string {
	return "dependencies:\n  shop:\n    limits:\n" +
		"      - {name: rate, kind: token_bucket, capacity: " + strconv.Itoa(capacity) + ", refill: 1/h}\n" +
		"    store: {timeout: 5s}\n"
}

// everything is a policy of each kind of limit, with names of their own for the shared server.
func everything(name string) string {
	return fmt.Sprintf(`
dependencies:
  %[1]s:
    limits:
      - {name: rate, kind: token_bucket, per: tenant, capacity: 3, refill: 1/h}
      - {name: daily, kind: quota, limit: 7, every: day, time_zone: America/New_York}
      - {name: minutely, kind: sliding_window, limit: 100, window: 1m}
      - {name: logged, kind: sliding_log, limit: 100, window: 1m}
    store: {timeout: 5s}
  %[1]s-db:
    limits:
      - {name: in-flight, kind: concurrency, max: 2, max_hold: 1h}
    store: {timeout: 5s}
  %[1]s-llm:
    limits:
      - {name: tpm, kind: token_bucket, unit: llm_tokens, capacity: 1000, refill: 1/h}
    store: {timeout: 5s}
  %[1]s-slots:
    limits:
      - {name: rate, kind: token_bucket, capacity: 1, refill: 1/min}
    store: {timeout: 5s}
`, name)
}

// everyVerb goes through all that the gate offers. It runs on a real Redis and on the embedded one.
func everyVerb(t *testing.T, b *broker, name string) {
	t.Helper()
	// By tenant, and over all tenants by the day.
	for _, tenant := range []string{"a", "b"} {
		for range 3 {
			require.Equal(t, http.StatusOK, b.ask(name, `{"tenant":"`+tenant+`"}`).status)
		}
		a := b.ask(name, `{"tenant":"`+tenant+`"}`)
		require.Equal(t, http.StatusTooManyRequests, a.status)
		require.Equal(t, "rate", a.Blocked)
		require.NotEmpty(t, a.header.Get("Retry-After"))
	}
	require.Equal(t, http.StatusOK, b.ask(name, `{"tenant":"c","dry_run":true}`).status)
	require.Equal(t, http.StatusOK, b.ask(name, `{"tenant":"c"}`).status)
	a := b.ask(name, `{"tenant":"d"}`)
	require.Equal(t, "quota", a.Reason, a.text)
	require.Equal(t, "daily", a.Blocked)
	require.Equal(t, http.StatusUnprocessableEntity, b.ask(name, `{"cost":4}`).status, "never fits")

	// Concurrency frees by release.
	db := name + "-db"
	first := b.ask(db, "")
	require.Equal(t, http.StatusOK, first.status)
	require.Equal(t, http.StatusOK, b.ask(db, "").status)
	require.Equal(t, "in-flight", b.ask(db, "").Blocked)
	tickets := "/v1/dependencies/" + db + "/tickets/"
	require.Equal(t, http.StatusOK, b.do(http.MethodPost, tickets+first.ID+"/extend", `{"hold":"10s"}`).status)
	require.Equal(t, "released", b.do(http.MethodPost, tickets+first.ID+"/release", "").Outcome)
	require.Equal(t, http.StatusOK, b.ask(db, "").status)

	// An estimate is settled.
	llm := name + "-llm"
	est := b.ask(llm, `{"costs":{"llm_tokens":900},"settle_later":true}`)
	require.Equal(t, http.StatusOK, est.status)
	require.Equal(t, http.StatusTooManyRequests, b.ask(llm, `{"costs":{"llm_tokens":200}}`).status)
	settled := b.do(http.MethodPost, "/v1/dependencies/"+llm+"/tickets/"+est.ID+"/settle", `{"costs":{"llm_tokens":700}}`)
	require.Contains(t, settled.text, `"returned":{"llm_tokens":200}`)
	require.Equal(t, http.StatusOK, b.ask(llm, `{"costs":{"llm_tokens":200}}`).status)

	// A reservation is cancelled, and its slot is free again.
	slots := name + "-slots"
	require.Equal(t, http.StatusOK, b.ask(slots, "").status)
	const ahead = `{"mode":"reserve","wait":"60s"}`
	reserved := b.ask(slots, ahead)
	require.Contains(t, reserved.text, `"start_in_ms":`)
	require.Equal(t, http.StatusTooManyRequests, b.ask(slots, ahead).status)
	require.Equal(t, "cancelled", b.do(http.MethodDelete, "/v1/dependencies/"+slots+"/tickets/"+reserved.ID, "").Outcome)
	require.Equal(t, http.StatusOK, b.ask(slots, ahead).status)

	// Batches, each for itself and together.
	batch := "/v1/dependencies/" + db + "/admissions/batch"
	require.Equal(t, http.StatusTooManyRequests, b.do(http.MethodPost, batch, `{"items":[{},{}],"all_or_nothing":true}`).status)
	each := b.do(http.MethodPost, batch, `{"items":[{},{}]}`)
	require.Equal(t, http.StatusOK, each.status)
	require.Len(t, each.Items, 2)
	require.EqualValues(t, http.StatusTooManyRequests, each.Items[0].Status)

	// What there is.
	require.Contains(t, b.do(http.MethodGet, "/v1/dependencies", "").text, `"`+llm+`"`)
	require.Contains(t, b.do(http.MethodGet, "/v1/dependencies/"+name, "").text, `"remaining":0`)
	require.Equal(t, http.StatusNotFound, b.ask("nobody", "").status)
	require.Equal(t, http.StatusBadRequest, b.ask(name, `{"cots":1}`).status)
	require.Equal(t, http.StatusOK, b.do(http.MethodGet, "/livez", "").status)
	require.True(t, b.ready(), b.do(http.MethodGet, "/readyz", "").text)
	metrics := b.do(http.MethodGet, "/metrics", "").text
	require.Contains(t, metrics, `sluice_decisions_total{class="default",dependency="`+name+`",outcome="admitted",reason="",source="redis"} 7`)
	require.Contains(t, metrics, "go_goroutines")
}

func TestServe_everyVerb(t *testing.T) {
	t.Parallel()
	name := "shop"
	b, _ := serve(t, redistest.Start(t).URL(), everything(name))
	everyVerb(t, b, name)
	require.Zero(t, b.stop(), b.stderr)
	b.logged(`"msg":"stopped"`)
}

// TestServe_twoBrokersShareOneBucket shows P1 over processes.
func TestServe_twoBrokersShareOneBucket(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t).URL()
	one, _ := serve(t, redis, slowly(10))
	two := start(t, "serve", "--listen", "127.0.0.1:0", "--redis-url", redis, "--drain-delay", "0s") // no file: what Redis holds
	require.Equal(t, 6, one.take("shop", 6))
	require.Equal(t, 4, two.take("shop", 6))
	require.Zero(t, one.take("shop", 1))
}

// TestServe_changedFile shows P12: the next decision uses the change, and counters are kept.
func TestServe_changedFile(t *testing.T) {
	t.Parallel()
	b, file := serve(t, redistest.Start(t).URL(), slowly(3))
	before := b.ask("shop", "").Version
	require.Equal(t, 2, b.take("shop", 3))

	require.NoError(t, os.WriteFile(file, []byte(slowly(5)), 0o600))
	b.logged("policy file applied")
	a := b.ask("shop", "")
	require.Equal(t, http.StatusOK, a.status)
	require.Greater(t, a.Version, before)
	require.EqualValues(t, 5, a.Limits[0].Limit)
	require.EqualValues(t, 1, a.Limits[0].Remaining, "three were taken before")
	require.Equal(t, 1, b.take("shop", 3))

	// A file with mistakes changes nothing and is told with its places.
	require.NoError(t, os.WriteFile(file, []byte(slowly(0)), 0o600))
	b.logged(`"level":"ERROR"`, "policy file not applied", "policies.yaml:4:", "capacity")
	require.Equal(t, a.Version, b.ask("shop", "").Version)
	require.Equal(t, http.StatusOK, b.do(http.MethodGet, "/readyz", "").status, b.stderr)
	// So does one that this version cannot serve.
	require.NoError(t, os.WriteFile(file, []byte(slowly(9)+"  other:\n    unlimited: true\n    store: {on_failure: local}\n"), 0o600))
	b.logged("policy file not applied", "policies.yaml:8:", "client library")
	require.Equal(t, a.Version, b.ask("shop", "").Version)
	require.Equal(t, http.StatusNotFound, b.ask("other", "").status)

	require.NoError(t, os.WriteFile(file, []byte(slowly(7)), 0o600))
	eventually(t, "the mended file is in force", func() bool { return b.ask("shop", "").Version > a.Version })
}

func TestServe_namesWhatIsNotInForce(t *testing.T) {
	t.Parallel()
	b, _ := serve(t, redistest.Start(t).URL(), "managed_by: review\n"+slowly(3)+"    queue: {max_length: 5}\n    lease: {max_tokens: 1}\n")
	b.logged(`"level":"WARN"`, "not in force", "managed_by: review")
	b.logged(`"level":"WARN"`, "not in force", `"dependency":"shop"`, `["queue","lease"]`)
}

func TestServe_refusesToStart(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	broken := t.TempDir() + "/broken.yaml"
	require.NoError(t, os.WriteFile(broken, []byte(slowly(0)), 0o600))
	evicting := redistest.Start(t, "--maxmemory-policy", "allkeys-lru").URL()
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"--listen", taken.Addr().String()}, "--listen: " + taken.Addr().String() + " is taken"},
		{[]string{"--listen", "0.0.0.0:0"}, "--listen: "},
		{[]string{"--listen", ":0"}, "loopback"},
		{[]string{"--redis-url", "http://:hunter2@h"}, "--redis-url: "},
		{[]string{"--max-in-flight", "0"}, "--max-in-flight: "},
		{[]string{"--policies", broken}, "broken.yaml:4:"},
		{[]string{"--policies", "/does/not/exist"}, "/does/not/exist"},
		{[]string{"--redis-url", evicting, "--listen", "127.0.0.1:0"}, "set maxmemory-policy noeviction"},
		{[]string{"--redis-ulr", "x"}, "--redis-ulr"},
		{[]string{"file"}, "file"},
	} {
		_, stderr := failing(t, append([]string{"serve"}, c.args...)...)
		require.Contains(t, stderr, c.says)
		require.NotContains(t, stderr, "hunter2")
	}
}

// TestServe_environment: the flag goes before the environment, which goes before the default.
func TestServe_environment(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var out output
	p := &program{stdout: &out, stderr: &out, environ: []string{"SLUICE_MAX_IN_FLIGHT=0", "SLUICE_LISTEN=nowhere"}}
	require.Equal(t, 1, p.run(ctx, []string{"serve", "--max-in-flight", "7"}))
	require.Contains(t, out.String(), "--listen: ")
	require.NotContains(t, out.String(), "--max-in-flight: ")
	p.environ = []string{"SLUICE_MAX_IN_FLIGHT=many"}
	require.Equal(t, 1, p.run(ctx, []string{"serve"}))
	require.Contains(t, out.String(), "SLUICE_MAX_IN_FLIGHT")
}

// TestServe_hangup: SIGHUP has the file read again, though nothing was noticed.
func TestServe_hangup(t *testing.T) {
	t.Parallel()
	p := startProcess(t, redistest.Start(t).URL(), slowly(3))
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGHUP))
	p.logged("policy file applied")
	require.Equal(t, 3, p.take("shop", 4), "counters do not start anew")
	require.NoError(t, os.WriteFile(p.file, []byte("{"), 0o600))
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGHUP))
	p.logged("policy file not applied", "policies.yaml:1:")
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
	require.Zero(t, p.wait(patience))
}

// TestServe_overload: more at once than --max-in-flight are refused at once, as told by the description.
func TestServe_overload(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	b, _ := serve(t, server.URL(), slowly(3), "--max-in-flight", "1")
	require.Equal(t, http.StatusOK, b.ask("shop", "").status)
	server.Stop()
	defer server.Cont()
	// Two at once, of which the later one meets the earlier one.
	answers := make(chan answer, 2)
	for range cap(answers) {
		go func() {
			a, err := b.send(http.MethodPost, "/v1/dependencies/shop/admissions", "")
			if err != nil {
				t.Error(err)
			}
			answers <- a
		}()
	}
	first := <-answers
	require.Equal(t, "overloaded", first.Reason, first.text)
	require.Equal(t, http.StatusServiceUnavailable, first.status)
	server.Cont()
	require.Equal(t, http.StatusOK, (<-answers).status)
}
