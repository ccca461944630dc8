package bucket

import (
	"context"
	"crypto/sha1" //nolint:gosec // Redis names scripts by their SHA-1; nothing is protected by it
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// ErrUnavailable means that the store did not answer, or answered that it cannot serve now. It is the one error that
// triggers the failure modes of a policy.
var ErrUnavailable = errors.New("store unavailable")

// More precise errors. The first three are ErrUnavailable as well, the others are not.
var (
	// ErrTimeout: the time that a caller gave has passed. What it asked for may still happen.
	ErrTimeout = fmt.Errorf("%w: timed out", ErrUnavailable)
	// ErrNotRun: the store is unavailable and certainly changed nothing, so the same may be sent again.
	ErrNotRun = fmt.Errorf("%w: nothing was run", ErrUnavailable)
	// ErrFull: the store answers, but has no memory left for what takes; what gives back still works.
	ErrFull = fmt.Errorf("%w: out of memory", ErrNotRun)
	// ErrBroken: the store answered that the script or its arguments are wrong. A repetition fails alike.
	ErrBroken = errors.New("broken script call")
	// ErrOverloaded: this process has as many waiting as it allows; nothing was sent.
	ErrOverloaded = errors.New("overloaded")
	// ErrClosed: what was asked has been closed; nothing was sent.
	ErrClosed = errors.New("closed")
)

// While a slot of a cluster moves, a script is refused (TRYAGAIN) as long as some of its keys are here and some there.
// Run then asks again after 5, 10, 20, 40 and 80 ms.
const (
	firstTryAgain = 5 * time.Millisecond
	lastTryAgain  = 80 * time.Millisecond
)

// Script is a Lua script that is called by its digest.
type Script struct {
	name   string
	source string
	sha    string
	loads  atomic.Int64
}

// NewScript joins the parts, one below the other, to a script: usually a prelude and a body. The name stands in errors.
func NewScript(name string, parts ...string) *Script {
	source := strings.Join(parts, "\n")
	sum := sha1.Sum([]byte(source)) //nolint:gosec // see the import
	return &Script{name: name, source: source, sha: hex.EncodeToString(sum[:])}
}

// Loads counts how often a server did not know the script and was sent its source.
func (s *Script) Loads() int64 { return s.loads.Load() }

// Run calls the script and returns its reply in go-redis's types: int64, string, []any, or nil for a nil reply. All
// keys belong to one hash slot; a script without keys goes to any node of a cluster.
//
// The script runs at most once. go-redis usually repeats a command whose reply was lost; here it does not, and follows
// only redirections and refusals of a cluster, after which nothing has run. So after an error that is ErrUnavailable
// and not ErrNotRun the script may have run or not.
//
// A cancelled ctx is returned as such, everything else as ErrUnavailable, ErrNotRun or ErrBroken, each with its cause.
func (s *Script) Run(ctx context.Context, client redis.UniversalClient, keys []string, args []any) (any, error) {
	reply, err := s.call(ctx, client, keys, args)
	for pause := firstTryAgain; redis.IsTryAgainError(err) && pause <= lastTryAgain; pause *= 2 {
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("script %s: %w", s.name, ctx.Err())
		case <-time.After(pause):
		}
		reply, err = s.call(ctx, client, keys, args)
	}
	switch {
	case err == nil:
		return reply, nil
	case errors.Is(err, redis.Nil):
		return nil, nil //nolint:nilnil // Lua's nil is a reply like any other
	case errors.Is(err, context.Canceled) && ctx.Err() != nil:
		return nil, fmt.Errorf("script %s: %w", s.name, err)
	default:
		return nil, fmt.Errorf("script %s: %w: %w", s.name, classify(err), err)
	}
}

// call sends the digest, and the source to a server that does not know it, which also loads it. A script cache that is
// flushed between the two costs nothing, because EVAL needs no cache.
func (s *Script) call(ctx context.Context, client redis.UniversalClient, keys []string, args []any) (any, error) {
	cmd := newOnce(ctx, "evalsha", s.sha, keys, args)
	err := client.Process(ctx, cmd)
	if err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") {
		s.loads.Add(1)
		cmd = newOnce(ctx, "eval", s.source, keys, args)
		err = client.Process(ctx, cmd)
	}
	if err != nil {
		return nil, err
	}
	return cmd.Val(), nil
}

// once is a command that go-redis never sends a second time after it may have run.
type once struct{ *redis.Cmd }

// NoRetry says so. Single, sentinel and cluster clients heed it wherever they would repeat a command after an error;
// MOVED and ASK are followed before it is asked for.
func (once) NoRetry() bool { return true }

func newOnce(ctx context.Context, verb, script string, keys []string, args []any) once {
	line := make([]any, 0, 3+len(keys)+len(args))
	line = append(line, verb, script, len(keys))
	for _, k := range keys {
		line = append(line, k)
	}
	line = append(line, args...)
	return once{redis.NewCmd(ctx, line...)}
}

// classify says which of ErrUnavailable, ErrNotRun and ErrBroken a failed call is.
func classify(err error) error {
	reply, ok := errors.AsType[redis.Error](err)
	if !ok {
		if neverSent(err) {
			return ErrNotRun
		}
		return ErrUnavailable
	}
	code, _, _ := strings.Cut(reply.Error(), " ")
	switch code {
	// Refusals of the server's state. Redis refuses a script's first write or none: once it has written, it may write
	// on whatever happens to memory, disk or role (scriptVerifyWriteCommandAllow and its neighbours in script.c).
	case "OOM":
		return ErrFull
	case "LOADING", "READONLY", "MASTERDOWN", "MISCONF", "NOREPLICAS", "BUSY",
		"CLUSTERDOWN", "TRYAGAIN", "MOVED", "ASK", "NOAUTH", "WRONGPASS":
		return ErrNotRun
	case "NOPERM":
		return ErrUnavailable
	}
	switch {
	case strings.HasPrefix(reply.Error(), "ERR max number of clients reached"):
		return ErrNotRun
	// NOPERM for a command of a script, in the words of Redis 7.0. Others may have run before it.
	case strings.HasPrefix(reply.Error(), "ERR The user executing the script can't"):
		return ErrUnavailable
	}
	return ErrBroken
}

// neverSent reports that the failure came before the command could have been written to a connection.
func neverSent(err error) bool {
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		return true
	}
	return errors.Is(err, redis.ErrPoolTimeout) || errors.Is(err, redis.ErrPoolExhausted) || errors.Is(err, redis.ErrClosed)
}
