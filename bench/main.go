// Command bench measures Sluice against what else decides on Redis, all on one server and in one run, and writes
// docs/benchmarks.md.
//
//	go run . -out ../docs/benchmarks.md
//
// It starts a redis-server of its own on loopback. Rounds alternate between the contenders, so that what else the
// machine does meets all of them alike; what counts is the ratio of medians.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"syscall"
	"time"
)

type options struct {
	out       string
	only      string // a contest, "gate", or "": all
	contender string // of the contest, or "": all
	profile   string
	rounds    int
	span      time.Duration
	requests  int // of one gate round
	broker    string
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := mainRun(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func mainRun(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) == 2 && args[0] == roleBare {
		if err := serveBare(ctx, args[1]); err != nil {
			fmt.Fprintln(stderr, err)
			return 1
		}
		return 0
	}
	o := options{}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&o.out, "out", "", "write the report here; empty: to standard output")
	flags.StringVar(&o.only, "only", "", "one contest by name, or gate; empty: all")
	flags.StringVar(&o.contender, "contender", "", "one contender by name; empty: all")
	flags.StringVar(&o.profile, "cpuprofile", "", "write a CPU profile of one round of ours here, for one contest")
	flags.StringVar(&o.broker, "broker", "./cmd/broker", "package of the broker in the module above, or empty: no gate over HTTP")
	flags.IntVar(&o.rounds, "rounds", 5, "rounds, of which the median counts")
	flags.DurationVar(&o.span, "span", time.Second, "length of one measurement")
	flags.IntVar(&o.requests, "requests", 40_000, "requests of one measurement of the gate")
	quick := flags.Bool("quick", false, "a smoke run: two short rounds, figures mean nothing")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if *quick {
		o.rounds, o.span, o.requests = 2, 20*time.Millisecond, 500
	}
	if err := bench(ctx, o, stdout, stderr); err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	return 0
}

func bench(ctx context.Context, o options, stdout, stderr io.Writer) (err error) {
	s, err := startServer(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	version, err := s.version(ctx)
	if err != nil {
		return err
	}
	rep := report{
		redis: version, cores: runtime.NumCPU(), rounds: o.rounds, span: o.span, when: time.Now().UTC(),
	}
	for _, c := range contests() {
		if o.only != "" && o.only != c.name {
			continue
		}
		res, err := contend(ctx, s, c, o, stderr)
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		rep.results = append(rep.results, res)
	}
	if o.broker != "" && (o.only == "" || o.only == "gate") {
		if rep.gate, err = measureGate(ctx, s, o, stderr); err != nil {
			return fmt.Errorf("gate: %w", err)
		}
	}
	return rep.write(o.out, stdout)
}

// result is what a contest yielded: runs by contender, in its order.
type result struct {
	contest
	runs [][]run
	cost []share // where the Go CPU time of ours went
}

func contend(ctx context.Context, s *server, c contest, o options, stderr io.Writer) (result, error) {
	res := result{contest: c, runs: make([][]run, len(c.contenders))}
	for round := range o.rounds {
		order := make([]int, len(c.contenders))
		for i := range order {
			order[i] = (i + round) % len(order)
		}
		for _, i := range order {
			if o.contender != "" && c.contenders[i].name != o.contender {
				continue
			}
			r, err := measure(ctx, s, c, c.contenders[i], o.span, nil)
			if err != nil {
				return res, fmt.Errorf("%s: %w", c.contenders[i].name, err)
			}
			res.runs[i] = append(res.runs[i], r)
			fmt.Fprintf(stderr, "%s %d %s: %.0f/s, p50 %v, p99 %v\n", c.name, round+1, c.contenders[i].name, r.rate(), r.quantile(0.5),
				r.quantile(0.99))
		}
	}
	if o.contender != "" && !slices.Contains([]string{c.contenders[0].name}, o.contender) {
		return res, nil
	}
	prof := &profile{}
	if _, err := measure(ctx, s, c, c.contenders[0], o.span, prof); err != nil {
		return res, err
	}
	if o.profile != "" {
		if err := os.WriteFile(o.profile, prof.raw.Bytes(), 0o600); err != nil {
			return res, err
		}
	}
	var err error
	res.cost, err = prof.shares()
	return res, err
}

// measure lets one contender work once on an empty server, first to warm up.
func measure(ctx context.Context, s *server, c contest, by contender, span time.Duration, prof *profile) (r run, err error) {
	if err := s.admin.FlushAll(ctx).Err(); err != nil {
		return run{}, err
	}
	ask, closeIt, err := by.open(ctx, s.addr)
	if err != nil {
		return run{}, err
	}
	defer func() { err = errors.Join(err, closeIt()) }()
	born := time.Now()
	warm, err := drive(ctx, c.callers, span/4, ask)
	if err != nil {
		return run{}, err
	}
	runtime.GC() // the garbage of others is not this one's cost
	m := meter{s: s}
	if err := m.begin(ctx); err != nil {
		return run{}, err
	}
	if prof != nil {
		if err := prof.start(); err != nil {
			return run{}, err
		}
	}
	r, err = drive(ctx, c.callers, span, func(ctx context.Context, caller, n int) (bool, error) {
		return ask(ctx, caller, n+most(warm, c.callers))
	})
	if prof != nil {
		prof.stop()
	}
	if err != nil {
		return run{}, err
	}
	if r.use, err = m.end(ctx); err != nil {
		return run{}, err
	}
	// Exact means exact: over the whole life of the bucket no more went through than it held and got.
	if all, bound := float64(warm.admitted+r.admitted), c.capacity+c.refill*time.Since(born).Seconds(); c.capacity > 0 && all > bound+1 {
		return run{}, fmt.Errorf("%.0f admitted, the bucket allows %.0f", all, bound)
	}
	return r, nil
}

// most is a number of asks beyond what any caller made in the run, so that keys of the next one are fresh.
func most(r run, callers int) int { return maxAsks/callers + r.asked }
