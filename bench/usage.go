package main

import (
	"context"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// usage is what a span of work cost.
type usage struct {
	client time.Duration // CPU of this process
	redis  time.Duration // CPU of the server
	script time.Duration // of it, within script calls
	inner  time.Duration // of that, within the commands that the scripts call
	calls  float64       // script calls
	cmds   float64       // commands, both those sent and those that scripts call
	mean   time.Duration // of a script call on the server
	p999   time.Duration
	byName map[string]float64 // commands by name
}

// meter measures what happens between begin and end.
type meter struct {
	s      *server
	client time.Duration
	redis  time.Duration
}

func (m *meter) begin(ctx context.Context) error {
	if err := m.s.admin.ConfigResetStat(ctx).Err(); err != nil {
		return err
	}
	var err error
	if m.redis, err = m.s.cpu(ctx); err != nil {
		return err
	}
	m.client = selfCPU()
	return nil
}

func (m *meter) end(ctx context.Context) (usage, error) {
	u := usage{client: selfCPU() - m.client, byName: map[string]float64{}}
	cpu, err := m.s.cpu(ctx)
	if err != nil {
		return u, err
	}
	u.redis = cpu - m.redis
	stats, err := m.s.info(ctx, "commandstats")
	if err != nil {
		return u, err
	}
	for k, v := range stats {
		name := strings.TrimPrefix(k, "cmdstat_")
		calls, usec := number(v, "calls"), time.Duration(number(v, "usec")*float64(time.Microsecond))
		switch {
		case name == "info" || strings.HasPrefix(name, "config"):
			continue
		case name == "evalsha":
			u.calls, u.script = calls, usec
			u.mean = time.Duration(number(v, "usec_per_call") * float64(time.Microsecond))
		case name == "hello" || strings.HasPrefix(name, "client"):
		default:
			u.inner += usec
		}
		u.cmds += calls
		u.byName[name] += calls
	}
	latency, err := m.s.info(ctx, "latencystats")
	u.p999 = time.Duration(number(latency["latency_percentiles_usec_evalsha"], "p99.9") * float64(time.Microsecond))
	return u, err
}

// cpu is what the server has used so far.
func (s *server) cpu(ctx context.Context) (time.Duration, error) {
	info, err := s.info(ctx, "cpu")
	if err != nil {
		return 0, err
	}
	var sum float64
	for _, k := range []string{"used_cpu_sys", "used_cpu_user"} {
		f, err := strconv.ParseFloat(info[k], 64)
		if err != nil {
			return 0, err
		}
		sum += f
	}
	return time.Duration(sum * float64(time.Second)), nil
}

func selfCPU() time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
