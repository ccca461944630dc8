package main

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func startDev(t *testing.T, args ...string) *broker {
	t.Helper()
	return start(t, append([]string{"dev", "--listen", "127.0.0.1:0", "--partner", "127.0.0.1:0"}, args...)...)
}

// TestDev_everyVerb: what a real Redis decides the embedded one decides, too.
func TestDev_everyVerb(t *testing.T) {
	t.Parallel()
	b := startDev(t, "--policies", write(t, everything("shop")))
	everyVerb(t, b, "shop")
	require.Zero(t, b.stop(), b.stderr)
}

func TestDev_saysWhatItIs(t *testing.T) {
	t.Parallel()
	b := startDev(t)
	out := b.stdout.String()
	require.Contains(t, out, "NOTHING SURVIVES IT")
	require.Contains(t, out, "curl -i -X POST http://"+b.addr+"/v1/dependencies/demo/admissions")
	require.Contains(t, out, "http://"+b.partner)
	require.Equal(t, http.StatusOK, b.do(http.MethodGet, "/readyz", "").status)
	for _, name := range []string{"demo", "shopify", "llm", "legacy-db"} {
		require.Equal(t, http.StatusOK, b.ask(name, "").status, name)
	}
	require.Zero(t, b.stop())
	require.Contains(t, b.stdout.String(), "counted 0 calls")
	require.Empty(t, b.stderr.String())
}

func TestDev_refusesToStart(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	at := taken.Addr().String()
	for _, c := range []struct {
		says string
		args []string
	}{
		{"--listen: " + at + " is taken", []string{"--listen", at, "--partner", "127.0.0.1:0"}},
		{"--partner: " + at + " is taken", []string{"--listen", "127.0.0.1:0", "--partner", at}},
		{"--listen: ", []string{"--listen", "0.0.0.0:0"}},
		{"--partner: ", []string{"--listen", "127.0.0.1:0", "--partner", "[::]:0"}},
		{"policies.yaml:4:", []string{"--policies", write(t, slowly(0))}},
	} {
		_, stderr := failing(t, append([]string{"dev"}, c.args...)...)
		require.Contains(t, stderr, c.says)
	}
}

// stats is what the fake partner has counted.
func (b *broker) stats() (s struct{ Calls, Violations int64 }) {
	b.t.Helper()
	r, err := http.NewRequestWithContext(b.t.Context(), http.MethodGet, "http://"+b.partner+"/stats", http.NoBody)
	require.NoError(b.t, err)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(r)
	require.NoError(b.t, err)
	defer resp.Body.Close()
	require.NoError(b.t, json.NewDecoder(resp.Body).Decode(&s))
	return s
}

// example runs a program of ../../examples and returns what it wrote.
func example(t *testing.T, name string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	return string(out), err
}

// TestExampleGate: workers that ask first never break the partner's limit; the same workers without asking do.
func TestExampleGate(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "gate")
	out, err := example(t, "go", "build", "-o", program, "../../examples/gate")
	require.NoError(t, err, out)
	b := startDev(t)
	flags := []string{"-broker", "http://" + b.addr, "-partner", "http://" + b.partner, "-calls", "25"}

	out, err = example(t, program, flags...)
	require.NoError(t, err, out)
	require.Contains(t, out, "25 calls by 8 workers")
	require.Contains(t, out, ": 0 violations")
	require.EqualValues(t, 25, b.stats().Calls)
	require.Zero(t, b.stats().Violations)

	// The control: the partner does count.
	out, err = example(t, program, append(flags, "-gate=false", "-calls", "60")...)
	require.Error(t, err)
	require.Contains(t, out, "limit was broken")
	require.Positive(t, b.stats().Violations)
}

// TestExampleCurl: the tour stops where an answer is not what it explains.
func TestExampleCurl(t *testing.T) {
	t.Parallel()
	b := startDev(t)
	out, err := example(t, "../../examples/curl/gate.sh", "http://"+b.addr)
	require.NoError(t, err, out)
	require.Contains(t, out, "# Done.")
	require.Contains(t, out, `"outcome":"cancelled"`)
	require.Contains(t, out, `"returned":{"llm_tokens":9000}`)
}
