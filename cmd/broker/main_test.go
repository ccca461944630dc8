package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9/logging"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/sluicehq/sluice/internal/httpapi/apitest"
)

// asProcess makes the test binary be the program itself, for tests of signals and exit codes.
const asProcess = "SLUICE_TEST_AS_PROCESS"

// patience bounds waiting for what must happen but has no time of its own.
const patience = 30 * time.Second

func TestMain(m *testing.M) {
	if os.Getenv(asProcess) != "" {
		main()
		return
	}
	logging.Disable() // go-redis, about servers that are killed here on purpose
	goleak.VerifyTestMain(m)
}

// output collects what a program writes, and is read while it writes.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// broker is a program that serves, in this process.
type broker struct {
	t              *testing.T
	addr, partner  string
	stdout, stderr *output
	client         *http.Client // holds every answer against the OpenAPI description
	asked          sync.Map     // path -> *atomic.Int64: how often it was sent
	interrupt      context.CancelFunc
	ended          chan struct{}
	code           int // once ended
}

// start runs the program with the arguments until the test ends, and returns when it serves.
func start(t *testing.T, args ...string) *broker {
	t.Helper()
	ctx, interrupt := context.WithCancel(context.WithoutCancel(t.Context()))
	b := &broker{
		t: t, stdout: &output{}, stderr: &output{}, client: checkedClient(t), interrupt: interrupt, ended: make(chan struct{}),
	}
	ready := make(chan [2]net.Addr, 1)
	p := &program{
		stdout: b.stdout, stderr: b.stderr, checkEvery: 50 * time.Millisecond,
		listening: func(broker, partner net.Addr) { ready <- [2]net.Addr{broker, partner} },
	}
	go func() {
		defer close(b.ended)
		b.code = p.run(ctx, args)
	}()
	t.Cleanup(func() { b.stop() })
	select {
	case addrs := <-ready:
		b.addr = addrs[0].String()
		if addrs[1] != nil {
			b.partner = addrs[1].String()
		}
	case <-b.ended:
		require.FailNow(t, "ended instead of serving", "%s", b.stderr)
	}
	return b
}

// serve starts `broker serve` on a free port. Its policies are a file of the content.
func serve(t *testing.T, redisURL, policies string, args ...string) (b *broker, file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "policies.yaml")
	require.NoError(t, os.WriteFile(file, []byte(policies), 0o600))
	return start(t, append([]string{
		"serve", "--listen", "127.0.0.1:0", "--redis-url", redisURL, "--policies", file, "--drain-delay", "0s",
	}, args...)...), file
}

// stop ends the program as SIGTERM does, and returns its exit code.
func (b *broker) stop() int {
	b.interrupt()
	select {
	case <-b.ended:
	case <-time.After(patience):
		require.FailNow(b.t, "does not end", "%s", b.stderr)
	}
	return b.code
}

// checkedClient fails the requests whose answers are not as described.
func checkedClient(t *testing.T) *http.Client {
	t.Helper()
	v, err := apitest.New()
	require.NoError(t, err)
	transport := &http.Transport{MaxIdleConnsPerHost: 64}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: v.Transport(transport), Timeout: patience}
}

// answer is what came back of a request.
type answer struct {
	status  int
	header  http.Header
	text    string
	ID      string `json:"id"`
	Outcome string `json:"outcome"`
	Reason  string `json:"reason"`
	Blocked string `json:"blocked_by"`
	Source  string `json:"source"`
	Mode    string `json:"store_mode"`
	Version int64  `json:"policy_version"`
	RetryMS int64  `json:"retry_after_ms"`
	Limits  []struct {
		Name      string `json:"name"`
		Limit     int64  `json:"limit"`
		Remaining int64  `json:"remaining"`
	} `json:"limits"`
	Items    []answer `json:"items"`
	Status   any      `json:"status"` // of an item or problem a number, of the process a word
	NotReady []string `json:"not_ready"`
}

// send is safe to call from any goroutine; do is not.
func (b *broker) send(method, path, body string) (answer, error) {
	times, _ := b.asked.LoadOrStore(path, &atomic.Int64{})
	times.(*atomic.Int64).Add(1)
	r, err := http.NewRequestWithContext(context.Background(), method, "http://"+b.addr+path, strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	resp, err := b.client.Do(r)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return answer{}, err
	}
	a := answer{status: resp.StatusCode, header: resp.Header, text: string(text)}
	if strings.Contains(resp.Header.Get("Content-Type"), "json") {
		if err := json.Unmarshal(text, &a); err != nil {
			return a, fmt.Errorf("%s: %w", text, err)
		}
	}
	return a, nil
}

func (b *broker) do(method, path, body string) answer {
	b.t.Helper()
	a, err := b.send(method, path, body)
	require.NoError(b.t, err)
	return a
}

// ask asks the dependency for admission.
func (b *broker) ask(dependency, body string) answer {
	b.t.Helper()
	return b.do(http.MethodPost, "/v1/dependencies/"+dependency+"/admissions", body)
}

// asks is how often the dependency was asked.
func (b *broker) asks(dependency string) int64 {
	times, _ := b.asked.LoadOrStore("/v1/dependencies/"+dependency+"/admissions", &atomic.Int64{})
	return times.(*atomic.Int64).Load()
}

// decided asks until Redis decides: on a busy machine it may be late at any time, and then takes nothing.
func (b *broker) decided(dependency string) (a answer) {
	b.t.Helper()
	eventually(b.t, "Redis decides", func() bool {
		a = b.ask(dependency, "")
		return a.Source == "redis"
	})
	return a
}

// take asks n times, and returns how many were admitted. The rest must have been refused by a limit.
func (b *broker) take(dependency string, n int) int {
	b.t.Helper()
	admitted := 0
	for range n {
		a := b.decided(dependency)
		switch a.status {
		case http.StatusOK:
			admitted++
		default:
			require.Equal(b.t, "limit", a.Reason, a.text)
		}
	}
	return admitted
}

func (b *broker) ready() bool {
	a, err := b.send(http.MethodGet, "/readyz", "")
	return err == nil && a.status == http.StatusOK
}

// eventually waits for what no event tells.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	require.Eventually(t, is, patience, 5*time.Millisecond, what)
}

// logged waits for a line of the log that has all the words.
func (b *broker) logged(words ...string) {
	b.t.Helper()
	eventually(b.t, "log says "+strings.Join(words, ", "), func() bool {
		for line := range strings.Lines(b.stderr.String()) {
			all := true
			for _, w := range words {
				all = all && strings.Contains(line, w)
			}
			if all {
				return true
			}
		}
		return false
	})
}

// failing runs the program until it ends by itself, which it must with code 1.
func failing(t *testing.T, args ...string) (stdout, stderr string) {
	t.Helper()
	var out, err output
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	code := (&program{stdout: &out, stderr: &err}).run(ctx, args)
	require.NoError(t, ctx.Err(), "it goes on instead of ending")
	require.Equal(t, 1, code, "%s", &err)
	return out.String(), err.String()
}
