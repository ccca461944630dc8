package main

import (
	"bytes"
	"cmp"
	"runtime/pprof"
	"slices"
	"strings"

	gprofile "github.com/google/pprof/profile"
)

// profile is a CPU profile of this process.
type profile struct{ raw bytes.Buffer }

func (p *profile) start() error { return pprof.StartCPUProfile(&p.raw) }
func (p *profile) stop()        { pprof.StopCPUProfile() }

// share is a part of the CPU time by what it was spent on.
type share struct {
	what string
	part float64
}

// shares sorts the samples by what they were spent on: the first word that the stack answers to, from the leaf up.
func (p *profile) shares() ([]share, error) {
	prof, err := gprofile.Parse(&p.raw)
	if err != nil {
		return nil, err
	}
	sums, total := map[string]int64{}, int64(0)
	for _, s := range prof.Sample {
		v := s.Value[len(s.Value)-1]
		sums[purpose(s)] += v
		total += v
	}
	out := make([]share, 0, len(sums))
	for k, v := range sums {
		out = append(out, share{k, float64(v) / float64(max(total, 1))})
	}
	slices.SortFunc(out, func(a, b share) int { return cmp.Compare(b.part, a.part) })
	return out, nil
}

// purposes are tried in order on every stack; the first whose mark occurs in it names it.
var purposes = []struct{ mark, name string }{ //nolint:gochecknoglobals // a constant table
	{"runtime.gcBgMarkWorker", "garbage collection"},
	{"runtime.gcAssistAlloc", "garbage collection"},
	{"runtime.bgsweep", "garbage collection"},
	{"syscall.Syscall", "system calls (socket)"},
	{"syscall.RawSyscall", "system calls (socket)"},
	{"runtime.mcall", "scheduler: waking and parking callers"},
	{"runtime.goready", "scheduler: waking and parking callers"},
	{"runtime.mallocgc", "allocation"},
	{"bucket.(*encoder)", "encoding the batch"},
	{"bucket.decode", "decoding the answers"},
	{"redis/go-redis", "go-redis: writing and reading the protocol"},
	{"bucket.(*Coalescer", "coalescer"},
	{"bucket.(*Limiter", "limiter"},
	{"main.", "the benchmark's callers"},
	{"runtime.", "scheduler: waking and parking callers"},
}

func purpose(s *gprofile.Sample) string {
	var stack strings.Builder
	for _, l := range s.Location {
		for _, line := range l.Line {
			stack.WriteString(line.Function.Name)
			stack.WriteByte('\n')
		}
	}
	for _, p := range purposes {
		if strings.Contains(stack.String(), p.mark) {
			return p.name
		}
	}
	return "other"
}
