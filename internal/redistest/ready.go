//go:build unix

package redistest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// patience bounds every wait for a server. It is generous because a loaded
// machine is no reason to fail and loading an append-only file takes its time.
const patience = time.Minute

// ready waits until the process itself, not another server that took its port
// in the meantime, answers PING. Output after mark is what it has said.
func (s *Server) ready(mark int64) error {
	err := eventually(func() (bool, error) {
		if s.ended() {
			return true, s.diagnose(mark)
		}
		return s.answers()
	})
	if err != nil {
		return fmt.Errorf("redis-server %s: %w", s.Addr(), err)
	}
	return nil
}

// answers asks once. Its error while it says false is the latest obstacle. It
// knocks before it asks and takes a new client each time, because go-redis logs
// refusals and stops dialling for a second after a series of them.
func (s *Server) answers() (bool, error) {
	ctx := context.Background()
	dialer := net.Dialer{Timeout: time.Second}
	conn, err := dialer.DialContext(ctx, "tcp", s.Addr())
	if err != nil {
		return false, err
	}
	_ = conn.Close() // it has served its purpose
	client := redis.NewClient(&redis.Options{
		Addr: s.Addr(), Password: s.password, Protocol: 2, MaxRetries: -1, DisableIdentity: true,
		DialTimeout: time.Second, ReadTimeout: time.Second, WriteTimeout: time.Second, DialerRetries: 1,
	})
	defer client.Close()
	info, err := client.Info(ctx, "server").Result()
	if err != nil {
		return false, err
	}
	if pid := infoField(info, "process_id"); pid != strconv.Itoa(s.pid()) {
		return false, fmt.Errorf("process %s answers on this port: %w", pid, errPortTaken)
	}
	// PING is refused while a data set loads, INFO is not.
	if err := client.Ping(ctx).Err(); err != nil {
		return false, err
	}
	version := infoField(info, "redis_version")
	if major, _, _ := strings.Cut(version, "."); len(major) == 1 && major < "7" {
		return true, fmt.Errorf("version %s is too old: Redis 7.0 or newer is needed", version)
	}
	return true, nil
}

// diagnose says why the process ended, by its own words.
func (s *Server) diagnose(mark int64) error {
	said, err := readFrom(s.log, mark)
	if err != nil {
		return err
	}
	if strings.Contains(said, "Address already in use") || strings.Contains(said, "Failed listening on port") {
		return fmt.Errorf("%w: %s", errPortTaken, said)
	}
	return fmt.Errorf("ended while starting: %s", said)
}

func (s *Server) pid() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc.pid
}

func (s *Server) ended() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc.exited()
}

// infoField returns the value of a line "name:value" of INFO or CLUSTER INFO.
func infoField(info, name string) string {
	for line := range strings.Lines(info) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

func readFrom(f *os.File, mark int64) (string, error) {
	b, err := io.ReadAll(io.NewSectionReader(f, mark, 64<<10))
	if err != nil {
		return "", fmt.Errorf("log of redis-server: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

// eventually tries until done, whose error is then the result, or until patience
// ends, when the latest error tells what was in the way.
func eventually(try func() (done bool, err error)) error {
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		done, err := try()
		if done {
			return err
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			return errors.Join(fmt.Errorf("gave up after %v", patience), err)
		}
	}
}
