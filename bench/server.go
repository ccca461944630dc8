package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// server is a redis-server of this run: on loopback, without persistence, gone afterwards.
type server struct {
	addr  string
	admin *redis.Client
	cmd   *exec.Cmd
	dir   string
}

// startServer runs redis-server on a free port. Another process may take the port first, so it tries a few.
func startServer(ctx context.Context) (*server, error) {
	dir, err := os.MkdirTemp("", "sluice-bench-")
	if err != nil {
		return nil, err
	}
	for range 5 {
		var s *server
		if s, err = tryServer(ctx, dir); err == nil {
			return s, nil
		}
	}
	return nil, errors.Join(err, os.RemoveAll(dir))
}

func tryServer(ctx context.Context, dir string) (*server, error) {
	port, err := freePort(ctx)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command("redis-server", "--bind", "127.0.0.1", "--port", strconv.Itoa(port), "--dir", dir, "--save", "",
		"--appendonly", "no", "--maxclients", "2000", "--maxmemory-policy", "noeviction", "--loglevel", "warning")
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start redis-server: %w", err)
	}
	s := &server{addr: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), cmd: cmd, dir: dir}
	s.admin = redis.NewClient(&redis.Options{Addr: s.addr})
	ready, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for s.admin.Ping(ready).Err() != nil {
		select {
		case <-ready.Done():
			return nil, errors.Join(fmt.Errorf("redis-server does not answer: %w", ready.Err()), s.end())
		case <-tick.C:
		}
	}
	return s, nil
}

func freePort(ctx context.Context) (int, error) {
	var config net.ListenConfig
	l, err := config.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	addr, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		return 0, fmt.Errorf("listening on %v", l.Addr())
	}
	return addr.Port, nil
}

func (s *server) close() error { return errors.Join(s.end(), os.RemoveAll(s.dir)) }

func (s *server) end() error {
	err := s.admin.Close()
	if killErr := s.cmd.Process.Kill(); killErr != nil {
		return errors.Join(err, killErr)
	}
	_ = s.cmd.Wait() // it was killed, and says so
	return err
}

// version is what the report names.
func (s *server) version(ctx context.Context) (string, error) {
	info, err := s.info(ctx, "server")
	return info["redis_version"], err
}

// info reads a section of INFO as a map.
func (s *server) info(ctx context.Context, section string) (map[string]string, error) {
	text, err := s.admin.Info(ctx, section).Result()
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for line := range strings.Lines(text) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			out[k] = v
		}
	}
	return out, nil
}

// number reads one of the values of "calls=3,usec=27,…".
func number(stats, name string) float64 {
	for part := range strings.SplitSeq(stats, ",") {
		if k, v, ok := strings.Cut(part, "="); ok && k == name {
			f, _ := strconv.ParseFloat(v, 64)
			return f
		}
	}
	return 0
}
