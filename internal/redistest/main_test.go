//go:build unix

package redistest_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/sluicehq/sluice/internal/redistest"
)

// panicEnv makes TestHelperPanics do as its name says.
const panicEnv = "REDISTEST_PANIC"

// TestMain shows that nothing here leaves a goroutine behind, not even the
// shared server, so that packages which use it may ask goleak too.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestHelperPanics is the test binary that TestNothingSurvivesAPanic runs.
func TestHelperPanics(t *testing.T) { //nolint:paralleltest // It ends the process.
	if os.Getenv(panicEnv) == "" {
		t.Skip("runs only as a child of TestNothingSurvivesAPanic")
	}
	fmt.Println("addr", redistest.Shared(t).Options().Addr)
	own := redistest.Start(t)
	own.Stop() // a frozen server must go too
	fmt.Println("addr", own.Addr())
	panic("on purpose")
}

func TestNothingSurvivesAPanic(t *testing.T) {
	t.Parallel()
	if os.Getenv(panicEnv) != "" {
		t.Skip("this is the child")
	}
	exe, err := os.Executable()
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, exe, "-test.run=^TestHelperPanics$", "-test.v")
	cmd.Env = append(os.Environ(), panicEnv+"=1")
	out, err := cmd.CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "on purpose")

	var addrs []string
	for scanner := bufio.NewScanner(strings.NewReader(string(out))); scanner.Scan(); {
		if addr, ok := strings.CutPrefix(scanner.Text(), "addr "); ok {
			addrs = append(addrs, addr)
		}
	}
	require.Len(t, addrs, 2, "%s", out)
	for _, addr := range addrs {
		require.Eventually(t, func() bool { return !listens(t, addr) }, 10*time.Second, 5*time.Millisecond, addr)
	}
}

// listens says whether anything accepts connections at addr.
func listens(t *testing.T, addr string) bool {
	t.Helper()
	dialer := net.Dialer{Timeout: time.Second}
	conn, err := dialer.DialContext(t.Context(), "tcp", addr)
	if err != nil {
		return false
	}
	require.NoError(t, conn.Close())
	return true
}
