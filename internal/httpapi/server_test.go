package httpapi_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/sluicehq/sluice/admission"
	"github.com/sluicehq/sluice/internal/httpapi"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve runs a server on a free port until the test ends.
func serve(t *testing.T, a *api, c httpapi.ServerConfig) *httpapi.Server {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := httpapi.NewServer(ln, a.handler, c)
	done := make(chan error, 1)
	go func() { done <- s.Serve() }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		require.NoError(t, s.Shutdown(ctx))
		require.NoError(t, <-done)
	})
	return s
}

type rawAnswer struct {
	status int
	closes bool // the connection
}

// raw sends bytes and reads the answer, nil if there is none.
func raw(t *testing.T, a *api, s *httpapi.Server, text string) *rawAnswer {
	t.Helper()
	conn, err := net.Dial("tcp", s.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(20*time.Second)))
	_, _ = io.WriteString(conn, text) // the server may close before all is written
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return nil
	}
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	if resp.Header.Get("Content-Type") == "application/problem+json" {
		require.NoError(t, a.check.Check(request("POST", admissions, ""), resp.StatusCode, resp.Header, body))
	}
	return &rawAnswer{status: resp.StatusCode, closes: resp.Close}
}

func TestServer_slowAndLarge(t *testing.T) {
	t.Parallel()
	a := newAPI(t, 0)
	s := serve(t, a, httpapi.ServerConfig{ReadHeaderTimeout: 300 * time.Millisecond, ReadTimeout: 500 * time.Millisecond, MaxHeaderBytes: 4096})
	head := "POST " + admissions + " HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"

	resp := raw(t, a, s, head+"Content-Length: 2\r\n\r\n{}")
	require.Equal(t, 200, resp.status)

	for _, slow := range []string{"Content-Length: 20\r\n\r\n{", "Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n"} {
		resp = raw(t, a, s, head+slow)
		require.NotNil(t, resp)
		require.Equal(t, 408, resp.status)
		require.True(t, resp.closes)
	}
	require.Nil(t, raw(t, a, s, head), "headers that never end: the connection is closed")

	resp = raw(t, a, s, head+"X-Bomb: "+strings.Repeat("x", 16<<10)+"\r\n\r\n")
	require.NotNil(t, resp)
	require.Equal(t, 431, resp.status)

	resp = raw(t, a, s, head+"Content-Length: 10485760\r\n\r\n")
	require.NotNil(t, resp)
	require.Equal(t, 413, resp.status)
}

func TestServer_shutdown(t *testing.T) {
	t.Parallel()
	a := newAPI(t, 0)
	s := serve(t, a, httpapi.ServerConfig{})
	entered, leave := make(chan struct{}), make(chan struct{})
	a.fake.admit = func(context.Context, admission.Ask) (admission.Decision, error) {
		close(entered)
		<-leave
		return admitted(), nil
	}
	client := &http.Client{Transport: a.check.Transport(&http.Transport{})}
	t.Cleanup(client.CloseIdleConnections)
	got := make(chan string, 1)
	go func() {
		resp, err := client.Post("http://"+s.Addr().String()+admissions, "application/json", bytes.NewBufferString(`{}`))
		if err != nil {
			got <- err.Error()
			return
		}
		_ = resp.Body.Close()
		got <- fmt.Sprint(resp.StatusCode)
	}()
	<-entered
	ended := make(chan error, 1)
	go func() { ended <- s.Shutdown(context.Background()) }()
	select {
	case err := <-ended:
		require.NoError(t, err)
		require.Fail(t, "shutdown did not wait for the request that is served")
	case <-time.After(50 * time.Millisecond):
	}
	close(leave)
	require.Equal(t, "200", <-got)
	require.NoError(t, <-ended)
	_, err := client.Get("http://" + s.Addr().String() + "/livez") //nolint:bodyclose // there is none
	require.Error(t, err)
}

// Readiness fails while asks are still served: load balancers need time to notice.
func TestServer_drainsFirst(t *testing.T) {
	t.Parallel()
	a := newAPI(t, 0)
	s := serve(t, a, httpapi.ServerConfig{DrainDelay: time.Hour})
	client := &http.Client{Transport: a.check.Transport(&http.Transport{})}
	t.Cleanup(client.CloseIdleConnections)
	status := func(method, path string) int {
		r, err := http.NewRequest(method, "http://"+s.Addr().String()+path, http.NoBody)
		require.NoError(t, err)
		resp, err := client.Do(r)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		return resp.StatusCode
	}
	require.Equal(t, 200, status("GET", "/readyz"))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Shutdown(ctx) }()
	require.Eventually(t, func() bool { return status("GET", "/readyz") == 503 }, 5*time.Second, time.Millisecond)
	require.Equal(t, 200, status("POST", admissions))
	cancel()
	if err := <-ended; err != nil { // nil where all connections were idle by then
		require.ErrorIs(t, err, context.Canceled)
	}
}

func TestRequireLoopback(t *testing.T) {
	t.Parallel()
	for _, addr := range []string{"127.0.0.1:8080", "127.8.9.1:0", "[::1]:8080", "localhost:8080", "[::ffff:127.0.0.1]:80", "unix:/run/s.sock"} {
		require.NoError(t, httpapi.RequireLoopback(addr), addr)
	}
	for _, addr := range []string{":8080", "0.0.0.0:8080", "[::]:8080", "10.0.0.1:80", "example.com:80", "169.254.1.1:80"} {
		require.ErrorContains(t, httpapi.RequireLoopback(addr), "127.0.0.1:8080", addr)
	}
	require.ErrorContains(t, httpapi.RequireLoopback("nonsense"), "host:port")
}
