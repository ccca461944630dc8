//go:build unix

package redistest

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"

	"github.com/redis/go-redis/v9"
)

// errPortTaken says that another process was quicker to bind a free port.
var errPortTaken = errors.New("port is taken")

// Server is one redis-server process. Its methods may be called from any
// goroutine.
type Server struct {
	tb       testing.TB // hears of signals that fail; nil for the shared server
	path     string
	dir      string
	args     []string
	password string
	port     int
	busPort  int      // cluster bus; 0 unless the args enable the cluster
	log      *os.File // unlinked: it vanishes with its last user

	mu   sync.Mutex
	proc *process
}

// Start runs a redis-server of the test's own in a directory of its own and
// returns once it answers. It ends in tb's Cleanup.
//
// It listens on a free loopback port, keeps nothing on disk, never evicts and
// allows DEBUG. The args are command line options of redis-server and come
// last, so they win: Start(tb, "--appendonly", "yes", "--appendfsync",
// "always"). Only address, directory and log are not theirs to set. With
// "--cluster-enabled", "yes" the node gets a free bus port too.
func Start(tb testing.TB, args ...string) *Server {
	tb.Helper()
	s, err := launch(tb.TempDir(), args, freePort)
	if err != nil {
		tb.Fatalf("redistest: %v", err)
	}
	s.tb = tb
	tb.Cleanup(func() {
		if err := s.close(); err != nil {
			tb.Errorf("redistest: %v", err)
		}
	})
	return s
}

// launch starts a server on the first port of next that nobody else takes.
func launch(dir string, args []string, next func() (int, error)) (*Server, error) {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, errors.New("redis-server is not on PATH: `make test` installs it on Debian and Ubuntu, elsewhere install Redis 7.0 or newer")
	}
	log, err := unlinkedFile()
	if err != nil {
		return nil, err
	}
	s := &Server{path: path, dir: dir, args: slices.Clone(args), password: option(args, "--requirepass"), log: log}
	for range 50 {
		if s.port, err = next(); err != nil {
			break
		}
		if option(args, "--cluster-enabled") == "yes" {
			if s.busPort, err = next(); err != nil {
				break
			}
		}
		if err = s.run(); !errors.Is(err, errPortTaken) {
			break
		}
	}
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// run starts the process on the server's port and waits until it answers.
func (s *Server) run() error {
	mark, err := s.log.Seek(0, 2)
	if err != nil {
		return fmt.Errorf("log of redis-server: %w", err)
	}
	p, err := spawn(s.path, s.commandLine(), s.log)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.proc = p
	s.mu.Unlock()
	if err := s.ready(mark); err != nil {
		return errors.Join(err, s.kill())
	}
	return nil
}

func (s *Server) commandLine() []string {
	line := []string{
		"--save", "",
		"--appendonly", "no",
		"--loglevel", "warning",
		"--maxmemory-policy", "noeviction",
		"--enable-debug-command", "local",
	}
	line = append(line, s.args...)
	line = append(
		line,
		"--bind", loopback,
		"--port", strconv.Itoa(s.port),
		"--dir", s.dir,
		"--logfile", "",
		"--daemonize", "no",
	)
	if s.busPort != 0 {
		line = append(line, "--cluster-port", strconv.Itoa(s.busPort), "--cluster-announce-ip", loopback)
	}
	return line
}

// Addr returns host:port.
func (s *Server) Addr() string { return address(s.port) }

// URL returns the address as redis://…, with the password if the args set one.
func (s *Server) URL() string {
	u := url.URL{Scheme: "redis", Host: s.Addr()}
	if s.password != "" {
		u.User = url.UserPassword("", s.password)
	}
	return u.String()
}

// Client returns a client of the server with go-redis's defaults, changed by
// mutate, which is closed in tb's Cleanup.
func (s *Server) Client(tb testing.TB, mutate ...func(*redis.Options)) *redis.Client {
	tb.Helper()
	return newClient(tb, &redis.Options{Addr: s.Addr(), Password: s.password}, mutate)
}

func newClient(tb testing.TB, options *redis.Options, mutate []func(*redis.Options)) *redis.Client {
	tb.Helper()
	for _, m := range mutate {
		m(options)
	}
	client := redis.NewClient(options)
	tb.Cleanup(func() {
		// A test may have closed it already; that is its right.
		if err := client.Close(); err != nil && !errors.Is(err, redis.ErrClosed) {
			tb.Errorf("redistest: close client: %v", err)
		}
	})
	return client
}

// Stop freezes the process (SIGSTOP) and returns once it stands still. The
// kernel goes on accepting connections for it, as it does for a hung server.
func (s *Server) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.check(s.proc.stop())
}

// Cont lets a stopped process go on (SIGCONT).
func (s *Server) Cont() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.check(s.proc.signal(syscall.SIGCONT))
}

// Kill ends the process at once (SIGKILL), whether stopped or not, and returns
// when it is gone; connections are reset and new ones refused.
func (s *Server) Kill() { s.check(s.kill()) }

// Restart starts the server again, on the same port and in the same directory,
// and returns once it has loaded what it kept there and answers. A server that
// still runs is killed first.
func (s *Server) Restart(tb testing.TB) {
	tb.Helper()
	err := s.kill()
	if err == nil {
		// The old port is the only one that will do, so a taken one is
		// waited for; run has the patience of one start per try.
		err = eventually(func() (bool, error) {
			err := s.run()
			return !errors.Is(err, errPortTaken), err
		})
	}
	if err != nil {
		tb.Fatalf("redistest: restart: %v", err)
	}
}

func (s *Server) kill() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil {
		return nil
	}
	return s.proc.kill()
}

func (s *Server) close() error { return errors.Join(s.kill(), s.log.Close()) }

// check reports a signal that could not be sent. It does not end the test,
// because faults may come from any goroutine.
func (s *Server) check(err error) {
	if err != nil && s.tb != nil {
		s.tb.Helper()
		s.tb.Errorf("redistest: %v", err)
	}
}

// option returns the last value of a command line option.
func option(args []string, name string) string {
	for i := len(args) - 2; i >= 0; i-- {
		if args[i] == name {
			return args[i+1]
		}
	}
	return ""
}

// unlinkedFile returns a file without a name, for output that is only read
// back when something fails.
func unlinkedFile() (*os.File, error) {
	f, err := os.CreateTemp("", "redistest-*.log")
	if err != nil {
		return nil, fmt.Errorf("log of redis-server: %w", err)
	}
	if err := os.Remove(f.Name()); err != nil {
		return nil, errors.Join(fmt.Errorf("log of redis-server: %w", err), f.Close())
	}
	return f, nil
}
