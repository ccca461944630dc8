package main

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// write makes a policy file of the content.
func write(t *testing.T, content string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "policies.yaml")
	require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
	return file
}

// TestCheck_allMistakes: each with its line and column and what is allowed, all at once.
func TestCheck_allMistakes(t *testing.T) {
	t.Parallel()
	file := write(t, `dependencies:
  shop:
    limits:
      - {name: rate, kind: token_bucket, capacity: 0, refil: 5/s}
      - {name: daily, kind: quota, limit: 10, every: day, time_zone: Mars/Olympus}
`)
	stdout, stderr := failing(t, "check", file)
	require.Empty(t, stdout)
	require.Contains(t, stderr, file+":4:52: dependencies.shop.limits[0].capacity: is 0; ")
	require.Contains(t, stderr, file+":4:55: dependencies.shop.limits[0].refil: is no known field; did you mean refill?")
	require.Contains(t, stderr, file+":5:70: dependencies.shop.limits[1].time_zone: ")
	require.Contains(t, stderr, "mistakes in "+file)
}

func TestCheck_localIsNotOffered(t *testing.T) {
	t.Parallel()
	file := write(t, slowly(5)+"  b:\n    unlimited: true\n    store:\n      on_failure: local\n")
	_, stderr := failing(t, "check", file)
	require.Contains(t, stderr, file+":9:19: dependencies.b.store.on_failure: is local, which comes with the client library")
	require.Contains(t, stderr, "1 mistake in")
}

func TestCheck_worstCase(t *testing.T) {
	t.Parallel()
	file := write(t, `managed_by: review
dependencies:
  shop:
    limits:
      - {name: rate, kind: token_bucket, per: tenant, capacity: 100, refill: 100/min}
      - {name: in-flight, kind: concurrency, max: 8}
      - {name: daily, kind: quota, limit: 1000, every: day}
      - {name: tried, kind: sliding_log, limit: 5, window: 10s, shadow: true, classes: [bulk]}
    classes: {bulk: {tier: 2}}
    plans: {plus: {limits: {rate: {capacity: 200}}}, same: {weight: 2}}
    tenants: {acme: {plan: plus}, "tea pot": {limits: {rate: {refill: 1/s}}}}
    queue: {}
  any: {unlimited: true}
`)
	var out, errs output
	require.Zero(t, (&program{stdout: &out, stderr: &errs}).run(t.Context(), []string{"check", file}), &errs)
	got := map[string]bool{}
	for line := range strings.Lines(out.String()) {
		got[strings.Join(strings.Fields(line), " ")] = true
	}
	for _, row := range []string{
		"DEPENDENCY LIMIT OF KIND PER UNIT AT ONCE SECOND MINUTE HOUR",
		"any (unlimited) - - - -",
		"shop rate all token_bucket tenant requests 100 101 200 6100",
		"shop rate plan plus token_bucket tenant requests 200 201 300 6200",
		`shop rate tenant "tea pot" token_bucket tenant requests 100 101 160 3700`,
		"shop in-flight all concurrency dependency - 8 - - -",
		"shop daily all quota dependency requests 1000 2000 2000 2000",
		"shop tried all sliding_log (shadow) dependency requests - - - -",
		"Not in force in this version, " + file + ": managed_by: review",
		"Not in force in this version, shop: queue, classes: tier, plans: weight",
	} {
		require.True(t, got[row], "%s\nin\n%s", row, &out)
	}
	require.NotContains(t, out.String(), "plan same", "what changes nothing is not listed")
	require.Empty(t, errs.String())
}

func TestCheck_whatIsBuiltIn(t *testing.T) {
	t.Parallel()
	var out output
	require.Zero(t, (&program{stdout: &out, stderr: &out}).run(t.Context(), []string{"check", "dev.yaml"}), &out)
	require.NotContains(t, out.String(), "Not in force")
}

func TestVersion(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"version"}, {"--version"}} {
		var out output
		require.Zero(t, run(t.Context(), args, &out, &out))
		require.Contains(t, out.String(), "broker ")
		if args[0] == "version" {
			require.Contains(t, out.String(), runtime.Version())
		}
	}
	_, stderr := failing(t, "chekc")
	require.Contains(t, stderr, "unknown command")
	_, stderr = failing(t, "check")
	require.Contains(t, stderr, "1 arg")
}
