//go:build unix

package redistest

import (
	"errors"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLaunchPassesOverTakenPorts offers ports that another server of ours and
// a stranger have taken: the answer of the other server must not be mistaken
// for one's own.
func TestLaunchPassesOverTakenPorts(t *testing.T) {
	t.Parallel()
	other := Start(t)
	stranger, err := listen()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, stranger.Close()) })
	free, err := freePort()
	require.NoError(t, err)

	ports := []int{other.port, stranger.Addr().(*net.TCPAddr).Port, free}
	s, err := launch(t.TempDir(), nil, func() (int, error) {
		if len(ports) == 0 {
			return freePort()
		}
		next := ports[0]
		ports = ports[1:]
		return next, nil
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.close()) })
	require.NotEqual(t, other.port, s.port)
	require.NotEqual(t, stranger.Addr().String(), s.Addr())
	require.NotEqual(t, other.pid(), s.pid())
	require.NoError(t, s.Client(t).Ping(t.Context()).Err())
}

func TestLaunchReportsThatThereIsNoPort(t *testing.T) {
	t.Parallel()
	none := errors.New("none left")
	_, err := launch(t.TempDir(), nil, func() (int, error) { return 0, none })
	require.ErrorIs(t, err, none)
}

func TestOption(t *testing.T) {
	t.Parallel()
	args := []string{"--a", "1", "--b", "2", "--a", "3", "--c"}
	require.Equal(t, "3", option(args, "--a"))
	require.Equal(t, "2", option(args, "--b"))
	require.Empty(t, option(args, "--c"))
	require.Empty(t, option(nil, "--a"))
}

func TestGreeting(t *testing.T) {
	t.Parallel()
	require.True(t, greeting([]byte("*2\r\n$5\r\nhello\r\n$1\r\n3\r\n")))
	require.False(t, greeting([]byte("*1\r\n$4\r\nPING\r\n")))
	require.False(t, greeting([]byte("HELLO 3\r\n")))
	require.False(t, greeting(nil))
}
