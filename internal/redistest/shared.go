//go:build unix

package redistest

import (
	"crypto/rand"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"
)

// shared is the one server that the tests of a binary have in common. It is
// the only state of this package: nothing else outlives a test.
//
//nolint:gochecknoglobals // A server per test binary has nowhere else to live.
var shared struct {
	once sync.Once
	addr string
	err  error
}

// Shared returns a client, closed in tb's Cleanup, of one server for all tests
// of the test binary; tests keep apart by the dependency [Name] gives them. It
// starts with the first call and dies with the binary, however that ends, and
// leaves neither a file nor a goroutine. Tests that flush, configure, stop or
// fill up a server take one of their own by [Start].
func Shared(tb testing.TB, mutate ...func(*redis.Options)) *redis.Client {
	tb.Helper()
	if !diesWithParent {
		return Start(tb).Client(tb, mutate...)
	}
	shared.once.Do(func() {
		// Nothing is ever written to the directory; the name of the dump
		// makes sure that nothing is read from it either.
		dump := "redistest-" + strings.ToLower(rand.Text()) + ".rdb"
		var s *Server
		if s, shared.err = launch(os.TempDir(), []string{"--dbfilename", dump}, freePort); shared.err == nil {
			shared.addr = s.Addr()
		}
	})
	if shared.err != nil {
		tb.Fatalf("redistest: shared server: %v", shared.err)
	}
	return newClient(tb, &redis.Options{Addr: shared.addr}, mutate)
}

// maxName is the length of the longest name of a dependency.
const maxName = 63

// Name returns a name for a dependency that no other test uses, nor the same
// test when it runs again: what can be read of tb's name, then chance. It
// matches [a-z0-9][a-z0-9._-]{0,62}.
func Name(tb testing.TB) string {
	tb.Helper()
	suffix := "-" + strings.ToLower(rand.Text()[:12]) // 60 bits
	name := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '.', r == '_', r == '-':
			return r
		case r >= 'A' && r <= 'Z':
			return r - 'A' + 'a'
		default:
			return '-'
		}
	}, tb.Name())
	name = strings.TrimLeft(name, "._-")
	if name == "" {
		name = "test"
	}
	return name[:min(len(name), maxName-len(suffix))] + suffix
}
