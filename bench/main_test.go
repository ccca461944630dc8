package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestMain lets the test binary be the bare server, which the program starts as itself.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == roleBare {
		os.Exit(mainRun(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// TestQuick runs everything for a moment: the figures mean nothing, but each contest works, admits no more than it may,
// and stands in the report, which keeps what was written by hand.
func TestQuick(t *testing.T) {
	t.Parallel()
	out := filepath.Join(t.TempDir(), "benchmarks.md")
	const hand = "- Something that was tried."
	require.NoError(t, os.WriteFile(out, []byte("old\n"+keptBegin+"\n"+hand+"\n"+keptEnd+"\nold\n"), 0o600))
	var stdout, stderr bytes.Buffer
	require.Zero(t, mainRun(t.Context(), []string{"-quick", "-out", out}, &stdout, &stderr), stderr.String())
	text, err := os.ReadFile(out)
	require.NoError(t, err)
	for _, c := range contests() {
		require.Contains(t, string(text), "| "+c.name+" | sluice |")
		for _, g := range c.goals {
			require.Contains(t, string(text), "| "+c.name+" | "+g.against+" |")
		}
	}
	require.Contains(t, string(text), "| broker | ")
	require.Contains(t, string(text), keptBegin+"\n"+hand+"\n"+keptEnd)
	require.NotContains(t, string(text), "old\n")
	for _, secret := range []string{"/tmp", "/home", "/root", "127.0.0.1"} {
		require.NotContains(t, string(text), secret)
	}
}

// TestJudge: a ratio is that of medians, and each goal is held against the right contender.
func TestJudge(t *testing.T) {
	t.Parallel()
	runs := func(rates ...int) []run {
		out := make([]run, len(rates))
		for i, r := range rates {
			out[i] = run{took: time.Second, asked: r, waits: []time.Duration{time.Duration(r)}}
		}
		return out
	}
	res := result{
		contest: contest{
			contenders: []contender{{name: "sluice"}, {name: "a"}, {name: "b"}, {name: "c"}},
			goals:      []goal{{against: "a", ratio: 30}, {against: "b", ratio: 1.2, latency: true}},
		},
		runs: [][]run{runs(1, 300, 1000), runs(10, 1, 20), runs(200, 280, 290), runs(100)},
	}
	for other, want := range map[string]string{
		"a": ">= 30x 30.0x pass", "b": "p50 <= 1.2x 1.07x pass", "c": " 3.0x ", "sluice": "  ",
	} {
		target, ratio, met := res.judge(other)
		require.Equal(t, want, strings.Join([]string{target, ratio, met}, " "), other)
	}
	res.goals[0].ratio, res.goals[1].ratio = 31, 1.05
	for _, other := range []string{"a", "b"} {
		_, _, met := res.judge(other)
		require.Equal(t, "**fail**", met)
	}
}

func TestKept(t *testing.T) {
	t.Parallel()
	for old, want := range map[string]string{
		"":                                     "",
		"x" + keptBegin + "\na\nb\n" + keptEnd: "a\nb",
		keptBegin + "without an end":           "",
	} {
		require.Equal(t, want, kept(old))
	}
}
