package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluicehq/sluice/internal/redistest"
)

// process is `broker serve` as a process of its own, which can be sent signals.
type process struct {
	*broker
	cmd   *exec.Cmd
	file  string
	ended chan error
}

// startProcess starts it with a policy file of the content, and returns when it serves.
func startProcess(t *testing.T, redisURL, policies string, args ...string) *process {
	t.Helper()
	p := &process{
		broker: &broker{t: t, stderr: &output{}, client: checkedClient(t)},
		file:   filepath.Join(t.TempDir(), "policies.yaml"), ended: make(chan error, 1),
	}
	require.NoError(t, os.WriteFile(p.file, []byte(policies), 0o600))
	p.cmd = exec.Command(os.Args[0], append([]string{
		"serve", "--listen", "127.0.0.1:0", "--redis-url", redisURL, "--policies", p.file,
	}, args...)...)
	p.cmd.Env = append(os.Environ(), asProcess+"=1")
	stderr, err := p.cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, p.cmd.Start())
	serving := make(chan string, 1)
	go func() {
		lines := bufio.NewScanner(stderr)
		for lines.Scan() {
			_, _ = p.stderr.Write(append(lines.Bytes(), '\n'))
			var line struct{ Msg, Address string }
			if json.Unmarshal(lines.Bytes(), &line) == nil && line.Msg == "serving" {
				serving <- line.Address
			}
		}
		p.ended <- p.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // mostly it has ended
		p.wait(patience)
	})
	select {
	case p.addr = <-serving:
	case err := <-p.ended:
		p.ended <- err
		require.FailNow(t, "ended instead of serving", "%s", p.stderr)
	case <-time.After(patience):
		require.FailNow(t, "does not serve", "%s", p.stderr)
	}
	return p
}

// wait returns the exit code, -1 where a signal ended the process.
func (p *process) wait(atMost time.Duration) int {
	p.t.Helper()
	select {
	case err := <-p.ended:
		p.ended <- err // for the next who waits
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			return exit.ExitCode()
		}
		return 0
	case <-time.After(atMost):
		require.FailNow(p.t, "does not end", "%s", p.stderr)
		return 0
	}
}

// TestShutdown_underLoad: readiness fails first, asks are served meanwhile, and who was admitted has heard of it: Redis
// counts as many tokens as callers do.
func TestShutdown_underLoad(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t).URL()
	const capacity = 1_000_000
	p := startProcess(t, redis, slowly(capacity), "--drain-delay", "500ms")

	var admitted, late atomic.Int64
	var notReady atomic.Bool
	var callers sync.WaitGroup
	for range 16 {
		callers.Go(func() {
			for {
				draining := notReady.Load()
				a, err := p.send(http.MethodPost, "/v1/dependencies/shop/admissions", "")
				switch {
				case errors.Is(err, syscall.ECONNREFUSED):
					return // it has gone, as it may
				case err != nil, a.Reason == "shutting_down":
					// A kept connection that is closed while a request is on its way: that request was not worked on.
				case a.status == http.StatusOK:
					admitted.Add(1)
					if draining {
						late.Add(1)
					}
				default:
					t.Error(a.text)
					return
				}
			}
		})
	}
	eventually(t, "load", func() bool { return admitted.Load() > 100 })
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
	eventually(t, "readiness fails", func() bool {
		a, err := p.send(http.MethodGet, "/readyz", "")
		return err == nil && a.status == http.StatusServiceUnavailable && a.NotReady[0] == "shutting down"
	})
	notReady.Store(true)
	require.Zero(t, p.wait(patience), p.stderr)
	callers.Wait()
	require.Positive(t, late.Load(), "asks are served while load balancers notice")

	other := start(t, "serve", "--listen", "127.0.0.1:0", "--redis-url", redis, "--drain-delay", "0s")
	left := other.do(http.MethodGet, "/v1/dependencies/shop", "").Limits[0].Remaining
	require.Equal(t, admitted.Load(), capacity-left, "taken, and told to a caller")
}

// TestShutdown_secondSignal: whoever signals twice does not wait for what is being served.
func TestShutdown_secondSignal(t *testing.T) {
	t.Parallel()
	p := startProcess(t, redistest.Start(t).URL(), slowly(3), "--shutdown-timeout", "1h", "--drain-delay", "1m")
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGINT))
	p.logged("shutting down")
	// The first signal is given back to the system just before it is logged, or just after.
	eventually(t, "the second signal ends it", func() bool {
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case err := <-p.ended:
			p.ended <- err
			return true
		default:
			return false
		}
	})
	require.Equal(t, -1, p.wait(patience))
}

// underWay sends an ask without its body, and returns when the broker wants to read that: it is working on the ask.
func (p *process) underWay() (net.Conn, *bufio.Reader) {
	p.t.Helper()
	var d net.Dialer
	conn, err := d.DialContext(p.t.Context(), "tcp", p.addr)
	require.NoError(p.t, err)
	p.t.Cleanup(func() { _ = conn.Close() })
	require.NoError(p.t, conn.SetDeadline(time.Now().Add(patience)))
	_, err = conn.Write([]byte("POST /v1/dependencies/shop/admissions HTTP/1.1\r\nHost: broker\r\n" +
		"Content-Type: application/json\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n"))
	require.NoError(p.t, err)
	r := bufio.NewReader(conn)
	line, err := r.ReadString('\n')
	require.NoError(p.t, err)
	require.Equal(p.t, "HTTP/1.1 100 Continue\r\n", line)
	_, err = r.ReadString('\n')
	require.NoError(p.t, err)
	return conn, r
}

// gone waits until nobody listens any more.
func (p *process) gone() {
	p.t.Helper()
	eventually(p.t, "no longer listening", func() bool {
		_, err := p.send(http.MethodGet, "/livez", "")
		return errors.Is(err, syscall.ECONNREFUSED)
	})
}

// TestShutdown_answersWhatWasBegun though nothing new is accepted any more.
func TestShutdown_answersWhatWasBegun(t *testing.T) {
	t.Parallel()
	p := startProcess(t, redistest.Start(t).URL(), slowly(3), "--drain-delay", "0s", "--shutdown-timeout", "1m")
	conn, answer := p.underWay()
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
	p.gone()
	_, err := conn.Write([]byte("{}"))
	require.NoError(t, err)
	status, err := answer.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "HTTP/1.1 200 OK\r\n", status)
	require.Zero(t, p.wait(patience))
}

// TestShutdown_inTime: what is not answered within --shutdown-timeout is cut off, and the exit code says so.
func TestShutdown_inTime(t *testing.T) {
	t.Parallel()
	p := startProcess(t, redistest.Start(t).URL(), slowly(3), "--drain-delay", "0s", "--shutdown-timeout", "200ms")
	_, answer := p.underWay()
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
	require.Equal(t, 1, p.wait(10*time.Second), "well before a body may take")
	_, err := answer.ReadString('\n')
	require.Error(t, err)
	p.logged("not answered within --shutdown-timeout 200ms")
}
