package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gorilla/mux"
)

const (
	// roleBare makes this program the server that the broker is compared with.
	roleBare = "serve-bare"
	gatePath = "/v1/dependencies/" + dependency + "/admissions"
	gateBody = `{"tenant":"acme","class":"default","cost":1}`
	// gateConnections are kept alive and used by one request at a time each.
	gateConnections = 64
	// gateGoal is what a request may cost the broker in CPU time, as a multiple of the bare handler's.
	gateGoal   = 1.8
	gatePolicy = "dependencies:\n  " + dependency + ":\n    limits:\n" +
		"      - {name: rate, kind: token_bucket, capacity: 10000000, refill: 10000000/s}\n" +
		"    store: {timeout: 5s}\n" // the load fills the machine, and what a stall of it does is not measured here
	// clockTick is the unit of CPU times in /proc, which Linux shows in hundredths of a second on every machine.
	clockTick = 10 * time.Millisecond
)

// gateRun is one span of requests to one of the servers.
type gateRun struct {
	cpu  time.Duration // of the server, per request
	rate float64       // requests a second
}

type gateResult struct {
	requests     int
	bare, broker []gateRun
}

// serveBare decodes an ask and encodes an answer with encoding/json behind the same router, and decides nothing.
func serveBare(ctx context.Context, addr string) error {
	type ask struct {
		Tenant string `json:"tenant"`
		Class  string `json:"class"`
		Cost   int64  `json:"cost"`
	}
	type limit struct {
		Name      string `json:"name"`
		Kind      string `json:"kind"`
		Per       string `json:"per"`
		Unit      string `json:"unit"`
		Limit     int64  `json:"limit"`
		Remaining int64  `json:"remaining"`
		FullInMS  int64  `json:"full_in_ms"`
	}
	type answer struct {
		ID            string  `json:"id"`
		Outcome       string  `json:"outcome"`
		Source        string  `json:"source"`
		PolicyVersion int64   `json:"policy_version"`
		Limits        []limit `json:"limits"`
	}
	router := mux.NewRouter()
	router.HandleFunc("/v1/dependencies/{dependency}/admissions", func(w http.ResponseWriter, r *http.Request) {
		var a ask
		d := json.NewDecoder(r.Body)
		d.DisallowUnknownFields()
		if err := d.Decode(&a); err != nil || mux.Vars(r)["dependency"] != dependency {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		// The client has gone if this fails.
		_ = json.NewEncoder(w).Encode(answer{
			ID: "adm_3f9a0c6e2b7d41e88a10", Outcome: "admitted", Source: "redis", PolicyVersion: 1,
			Limits: []limit{{"rate", "token_bucket", "dependency", "requests", plenty, plenty - a.Cost, 1}},
		})
	}).Methods(http.MethodPost)
	var config net.ListenConfig
	l, err := config.Listen(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: router, ReadHeaderTimeout: 10 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// measureGate runs both servers as processes of their own and asks them in turn.
func measureGate(ctx context.Context, s *server, o options, stderr io.Writer) (*gateResult, error) {
	if err := s.admin.FlushAll(ctx).Err(); err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	binary, policies := filepath.Join(s.dir, "broker"), filepath.Join(s.dir, "policies.yaml")
	if out, err := exec.CommandContext(ctx, "go", "build", "-C", "..", "-o", binary, o.broker).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build the broker: %w: %s", err, out)
	}
	if err := os.WriteFile(policies, []byte(gatePolicy), 0o600); err != nil {
		return nil, err
	}
	bare, err := startChild(ctx, func(addr string) []string { return []string{self, roleBare, addr} })
	if err != nil {
		return nil, err
	}
	defer bare.end()
	broker, err := startChild(ctx, func(addr string) []string {
		return []string{
			binary, "serve", "--listen", addr, "--redis-url", "redis://" + s.addr, "--policies", policies, "--log-level", "warn",
		}
	})
	if err != nil {
		return nil, err
	}
	defer broker.end()
	res := &gateResult{requests: o.requests}
	for round := range o.rounds {
		for i := range 2 {
			server, runs, name := bare, &res.bare, "bare"
			if (i+round)%2 == 1 {
				server, runs, name = broker, &res.broker, "broker"
			}
			r, err := server.measure(ctx, o.requests)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			*runs = append(*runs, r)
			fmt.Fprintf(stderr, "gate %d %s: %v a request, %.0f/s\n", round+1, name, r.cpu, r.rate)
		}
	}
	return res, nil
}

// child is a server process under measurement.
type child struct {
	addr string
	cmd  *exec.Cmd
}

func startChild(ctx context.Context, line func(addr string) []string) (*child, error) {
	port, err := freePort(ctx)
	if err != nil {
		return nil, err
	}
	c := &child{addr: net.JoinHostPort("127.0.0.1", strconv.Itoa(port))}
	args := line(c.addr)
	var output strings.Builder
	c.cmd = exec.Command(args[0], args[1:]...)
	c.cmd.Stdout, c.cmd.Stderr = &output, &output
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	ready, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if err = c.drive(ready, 1, 1); err == nil {
			return c, nil
		}
		select {
		case <-ready.Done():
			c.end()
			return nil, fmt.Errorf("%s does not answer: %w: %s", filepath.Base(args[0]), err, output.String())
		case <-tick.C:
		}
	}
}

func (c *child) end() {
	_ = c.cmd.Process.Kill() // it may have ended
	_ = c.cmd.Wait()         // it was killed, and says so
}

// measure sends the requests, after a twentieth of them to warm up.
func (c *child) measure(ctx context.Context, requests int) (gateRun, error) {
	if err := c.drive(ctx, gateConnections, requests/20); err != nil {
		return gateRun{}, err
	}
	before, err := c.cpu()
	if err != nil {
		return gateRun{}, err
	}
	begin := time.Now()
	if err := c.drive(ctx, gateConnections, requests); err != nil {
		return gateRun{}, err
	}
	took := time.Since(begin)
	after, err := c.cpu()
	return gateRun{cpu: (after - before) / time.Duration(requests), rate: float64(requests) / took.Seconds()}, err
}

// drive sends so many requests over so many connections and wants 200 for each.
func (c *child) drive(ctx context.Context, connections, requests int) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	request := []byte("POST " + gatePath + " HTTP/1.1\r\nHost: " + c.addr + "\r\nContent-Type: application/json\r\nContent-Length: " +
		strconv.Itoa(len(gateBody)) + "\r\n\r\n" + gateBody)
	errs := make([]error, connections)
	var wg sync.WaitGroup
	for i := range connections {
		share := requests / connections
		if i < requests%connections {
			share++
		}
		wg.Go(func() { errs[i] = c.requests(ctx, request, share) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (c *child) requests(ctx context.Context, request []byte, n int) error {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", c.addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	r := bufio.NewReader(conn)
	for range n {
		if _, err := conn.Write(request); err != nil {
			return err
		}
		res, err := http.ReadResponse(r, nil)
		if err != nil {
			return err
		}
		body, err := io.ReadAll(res.Body)
		if err := errors.Join(err, res.Body.Close()); err != nil {
			return err
		}
		if res.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %s", res.Status, body)
		}
	}
	return nil
}

// cpu is what the process has used so far, by /proc (proc_pid_stat(5), fields 14 and 15).
func (c *child) cpu() (time.Duration, error) {
	raw, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(c.cmd.Process.Pid), "stat"))
	if err != nil {
		return 0, err
	}
	// The name of the program, in brackets, may hold anything.
	f := strings.Fields(string(raw[strings.LastIndexByte(string(raw), ')')+1:]))
	const user, system = 14 - 3, 15 - 3
	if len(f) <= system {
		return 0, fmt.Errorf("unexpected process status %q", raw)
	}
	u, err := strconv.ParseInt(f[user], 10, 64)
	if err != nil {
		return 0, err
	}
	k, err := strconv.ParseInt(f[system], 10, 64)
	return time.Duration(u+k) * clockTick, err
}

func (g *gateResult) write(p func(string, ...any)) {
	cpu := func(r gateRun) time.Duration { return r.cpu }
	rate := func(r gateRun) float64 { return r.rate }
	bare, broker := median(g.bare, cpu), median(g.broker, cpu)
	ratio := float64(broker) / float64(max(bare, 1))
	p("## The gate over HTTP\n")
	p("`broker serve` with a policy of one bucket, and a bare handler that decodes and encodes the same JSON with encoding/json behind the same router and decides nothing. Each is a process of its own; %d connections are kept alive and send %d requests a round, in turn. CPU is that of the server process per request, from /proc; it does not contain Redis.\n", gateConnections, g.requests)
	p("| server | CPU a request | requests/s | goal | ratio | met |")
	p("|---|---|---|---|---|---|")
	p("| bare handler | %s | %s |  |  |  |", short(bare), thousands(median(g.bare, rate)))
	p("| broker | %s | %s | <= %gx | %.2fx | %s |\n", short(broker), thousands(median(g.broker, rate)), gateGoal, ratio, verdict(ratio <= gateGoal))
}
