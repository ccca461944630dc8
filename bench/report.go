package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"
)

// What stands between these lines is kept by hand and survives.
const (
	keptBegin = "<!-- kept by hand: begin -->"
	keptEnd   = "<!-- kept by hand: end -->"
)

type report struct {
	redis   string
	cores   int
	rounds  int
	span    time.Duration
	when    time.Time
	results []result
	gate    *gateResult
}

// write puts the report to the file, or to stdout where there is none.
func (r *report) write(path string, stdout io.Writer) error {
	if path == "" {
		_, err := stdout.Write(r.text(""))
		return err
	}
	old, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.WriteFile(path, r.text(kept(string(old))), 0o644) //nolint:gosec // a page for everybody
}

// kept is what stands between the marks.
func kept(old string) string {
	_, rest, found := strings.Cut(old, keptBegin)
	if !found {
		return ""
	}
	text, _, found := strings.Cut(rest, keptEnd)
	if !found {
		return ""
	}
	return strings.Trim(text, "\n")
}

func (r *report) text(byHand string) []byte {
	var b bytes.Buffer
	p := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	p("# Benchmarks\n")
	p("Written by `bench`; only the last section is kept by hand. To measure again:\n")
	p("```\ncd bench && go run . -out ../docs/benchmarks.md\n```\n")
	p("Machine: %d cores, %s %s/%s, Redis %s. Date: %s.\n", r.cores, runtime.Version(), runtime.GOOS, runtime.GOARCH, r.redis,
		r.when.Format(time.DateOnly))
	p("## Method\n")
	p("- One redis-server on loopback, without persistence, serves all contenders; it and the callers share the cores. Before each measurement it is emptied.")
	p("- Each contest has %d rounds; within a round every contender works for %v after a quarter of that to warm up, and the order rotates from round to round. Callers ask again as soon as they have an answer.", r.rounds, r.span)
	p("- A figure is the median of its rounds, with the smallest and the largest behind it. A ratio is that of medians.")
	p("- Contenders: `sluice` is `bucket.Limiter.Do`, which is exact and groups what is asked while a call is under way. `redis_rate v10` is `Limiter.Allow` of github.com/go-redis/redis_rate on a go-redis client with PoolSize %d. `one call each, AutoPipeline` makes for every decision the very script call of one of our asks, through the AutoPipeline of go-redis.", peerPool)
	p("- `hot` is one bucket that never runs dry, `dry` one of %d/s that refuses nearly everything, `tenants` 256 tenants with a bucket each, `three` the same with a shared bucket and a daily quota besides (all or nothing); `keyed`: every ask has an idempotency key of its own, and its answer is remembered. The number is that of callers. The peer's ask is always for one bucket.", scarce)
	p("- Nothing is admitted beyond capacity + refill x time, or the run fails.")
	p("- CPU is that of the benchmark's process (callers included) and of redis-server, per decision. Latency is a caller's.\n")
	r.decisions(p)
	r.costs(p)
	if r.gate != nil {
		r.gate.write(p)
	}
	p("## Tried, and what came of it\n")
	p("%s\n%s\n%s", keptBegin, byHand, keptEnd)
	return b.Bytes()
}

func (r *report) decisions(p func(string, ...any)) {
	p("## Decisions\n")
	p("| contest | contender | decisions/s | p50 | p99 | Go CPU | Redis CPU | goal | ratio | met |")
	p("|---|---|---|---|---|---|---|---|---|---|")
	for _, res := range r.results {
		for i, c := range res.contenders {
			runs := res.runs[i]
			if len(runs) == 0 {
				continue
			}
			target, ratio, met := res.judge(c.name)
			p("| %s | %s | %s | %s | %s | %s us | %s us | %s | %s | %s |", res.name, c.name, spreadOf(runs, run.rate),
				short(median(runs, func(x run) time.Duration { return x.quantile(0.5) })),
				short(median(runs, func(x run) time.Duration { return x.quantile(0.99) })),
				per(runs, func(x run) time.Duration { return x.use.client }), per(runs, func(x run) time.Duration { return x.use.redis }),
				target, ratio, met)
		}
	}
	p("")
}

// judge says what is asked of us against the other contender, what we reached and whether that is enough.
func (res *result) judge(other string) (target, ratio, met string) {
	if other == res.contenders[0].name {
		return "", "", ""
	}
	i := slices.IndexFunc(res.contenders, func(c contender) bool { return c.name == other })
	if len(res.runs[0]) == 0 || len(res.runs[i]) == 0 {
		return "", "", ""
	}
	rate := median(res.runs[0], run.rate) / median(res.runs[i], run.rate)
	k := slices.IndexFunc(res.goals, func(g goal) bool { return g.against == other })
	if k < 0 {
		return "", fmt.Sprintf("%.1fx", rate), ""
	}
	g := res.goals[k]
	if g.latency {
		p50 := func(x run) float64 { return float64(x.quantile(0.5)) }
		q := median(res.runs[0], p50) / median(res.runs[i], p50)
		return fmt.Sprintf("p50 <= %gx", g.ratio), fmt.Sprintf("%.2fx", q), verdict(q <= g.ratio)
	}
	return fmt.Sprintf(">= %gx", g.ratio), fmt.Sprintf("%.1fx", rate), verdict(rate >= g.ratio)
}

func verdict(ok bool) string {
	if ok {
		return "pass"
	}
	return "**fail**"
}

// costs says what a decision of ours is made of.
func (r *report) costs(p func(string, ...any)) {
	p("## What the remaining cost is made of\n")
	p("Of `sluice`, per decision. Redis CPU is split by INFO commandstats: the commands that the script calls, the rest of the script (Lua, its arguments and its reply), and what is outside of scripts (socket, parsing). Script times are wall-clock on the server.\n")
	p("| contest | asks a call | commands a call | script mean | script p99.9 | in commands | Lua | outside scripts | commands |")
	p("|---|---|---|---|---|---|---|---|---|")
	for _, res := range r.results {
		runs := res.runs[0]
		if len(runs) == 0 {
			continue
		}
		p("| %s | %.1f | %.1f | %s | %s | %s us | %s us | %s us | %s |", res.name,
			median(runs, func(x run) float64 { return float64(x.asked) / max(x.use.calls, 1) }),
			median(runs, func(x run) float64 { return x.use.cmds / max(x.use.calls, 1) }),
			short(median(runs, func(x run) time.Duration { return x.use.mean })),
			short(median(runs, func(x run) time.Duration { return x.use.p999 })),
			per(runs, func(x run) time.Duration { return x.use.inner }),
			per(runs, func(x run) time.Duration { return x.use.script - x.use.inner }),
			per(runs, func(x run) time.Duration { return max(0, x.use.redis-x.use.script) }), byName(runs[0].use))
	}
	p("\nGo CPU of the benchmark's process, from a CPU profile of one more round:\n")
	p("| contest | share of the CPU time |")
	p("|---|---|")
	for _, res := range r.results {
		parts := make([]string, 0, len(res.cost))
		for _, s := range res.cost {
			if s.part >= 0.01 {
				parts = append(parts, fmt.Sprintf("%s %.0f %%", s.what, 100*s.part))
			}
		}
		p("| %s | %s |", res.name, strings.Join(parts, ", "))
	}
	p("")
}

// byName lists how often each command ran per script call.
func byName(u usage) string {
	names := make([]string, 0, len(u.byName))
	for name, n := range u.byName {
		if n/max(u.calls, 1) >= 0.01 {
			names = append(names, fmt.Sprintf("%s %.1f", name, n/max(u.calls, 1)))
		}
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// spreadOf is the median with the extremes behind it.
func spreadOf(runs []run, f func(run) float64) string {
	vals := make([]float64, len(runs))
	for i, x := range runs {
		vals[i] = f(x)
	}
	return fmt.Sprintf("%s (%s to %s)", thousands(median(runs, f)), thousands(slices.Min(vals)), thousands(slices.Max(vals)))
}

// per is the median of a time per decision, in microseconds.
func per(runs []run, f func(run) time.Duration) string {
	us := median(runs, func(x run) float64 { return float64(f(x).Nanoseconds()) / 1000 / float64(max(x.asked, 1)) })
	if us < 10 {
		return fmt.Sprintf("%.2f", us)
	}
	return fmt.Sprintf("%.1f", us)
}

func short(d time.Duration) string {
	if d < time.Millisecond {
		return fmt.Sprintf("%.0f us", float64(d.Nanoseconds())/1000)
	}
	return fmt.Sprintf("%.2f ms", float64(d.Microseconds())/1000)
}

func thousands(f float64) string {
	s := fmt.Sprintf("%.0f", f)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
