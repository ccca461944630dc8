package bucket

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluicehq/sluice/internal/redistest"
)

func TestScriptJoinsItsParts(t *testing.T) {
	t.Parallel()
	client := redistest.Shared(t)
	s := NewScript("sum", "local function sum(a, b) return a + b end", "return {KEYS[1], sum(ARGV[1], ARGV[2]), false}")
	reply, err := s.Run(t.Context(), client, []string{"k"}, []any{40, "2"})
	require.NoError(t, err)
	require.Equal(t, []any{"k", int64(42), nil}, reply)

	reply, err = NewScript("nil", "return nil").Run(t.Context(), client, nil, nil)
	require.NoError(t, err)
	require.Nil(t, reply)
}

func TestScriptIsLoadedOnceAndThenCalledByDigest(t *testing.T) {
	t.Parallel()
	client := redistest.Start(t).Client(t)
	s := NewScript("one", "return 1")
	for range 3 {
		reply, err := s.Run(t.Context(), client, nil, nil)
		require.NoError(t, err)
		require.Equal(t, int64(1), reply)
	}
	require.Equal(t, int64(1), s.Loads())
	known, err := client.ScriptExists(t.Context(), redis.NewScript("return 1").Hash()).Result()
	require.NoError(t, err)
	require.Equal(t, []bool{true}, known)
}

func TestScriptDoesNotNoticeFlushes(t *testing.T) {
	t.Parallel()
	client := redistest.Start(t).Client(t)
	s := NewScript("incr", "return redis.call('INCR', KEYS[1])")
	ctx, stop := context.WithCancel(t.Context())
	var flusher sync.WaitGroup
	defer flusher.Wait()
	defer stop()
	flusher.Go(func() {
		for ctx.Err() == nil {
			_ = client.ScriptFlush(ctx).Err()
		}
	})
	runs := int64(0)
	for s.Loads() < 50 || runs < 500 {
		reply, err := s.Run(t.Context(), client, []string{"counter"}, nil)
		require.NoError(t, err)
		runs++
		require.Equal(t, runs, reply)
	}
}

// A reply that is lost is an error, and the script has run once, by digest and by source.
func TestScriptIsNeverReplayed(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr())
	through := proxy.Client(t, func(o *redis.Options) { o.MaxRetries = 5 })
	past := server.Client(t)
	s := NewScript("incr", "return redis.call('INCR', KEYS[1])")
	for n := range int64(10) {
		key := fmt.Sprint("counter", n)
		if n%2 == 0 {
			require.NoError(t, past.ScriptFlush(t.Context()).Err())
			proxy.DropReplies(1) // NOSCRIPT is lost: nothing has run
			_, err := s.Run(t.Context(), through, []string{key}, nil)
			require.ErrorIs(t, err, ErrUnavailable)
			require.ErrorIs(t, past.Get(t.Context(), key).Err(), redis.Nil)
			_, err = s.Run(t.Context(), past, []string{"other"}, nil)
			require.NoError(t, err)
		}
		proxy.DropReplies(1)
		_, err := s.Run(t.Context(), through, []string{key}, nil)
		require.ErrorIs(t, err, ErrUnavailable)
		require.NotErrorIs(t, err, ErrNotRun, "it has run")
		require.NotErrorIs(t, err, ErrBroken)
		require.Contains(t, err.Error(), "script incr: store unavailable")
		require.Equal(t, "1", past.Get(t.Context(), key).Val())
	}
	require.Equal(t, 15, proxy.Dropped())

	// The same client does replay a plain command; the test would not see the difference otherwise.
	proxy.DropReplies(1)
	require.NoError(t, through.Incr(t.Context(), "plain").Err())
	require.Equal(t, "2", past.Get(t.Context(), "plain").Val())
}

func TestScriptClassifiesWhatRedisAnswers(t *testing.T) {
	t.Parallel()
	incr := NewScript("incr", "return redis.call('INCR', KEYS[1])")
	run := func(t *testing.T, s *Script, client redis.UniversalClient) error {
		t.Helper()
		_, err := s.Run(t.Context(), client, []string{"k"}, nil)
		require.Error(t, err)
		return err
	}
	for name, test := range map[string]struct {
		prepare [][]any
		script  *Script
		want    error
		code    string
	}{
		"out of memory": {[][]any{{"CONFIG", "SET", "maxmemory", "1"}}, incr, ErrNotRun, "OOM "},
		"read-only":     {[][]any{{"REPLICAOF", "127.0.0.1", "1"}}, incr, ErrNotRun, "READONLY "},
		"replica without its master": {
			[][]any{{"CONFIG", "SET", "replica-serve-stale-data", "no"}, {"REPLICAOF", "127.0.0.1", "1"}},
			incr, ErrNotRun, "MASTERDOWN ",
		},
		"no replicas":         {[][]any{{"CONFIG", "SET", "min-replicas-to-write", "1"}}, incr, ErrNotRun, "NOREPLICAS "},
		"no password":         {[][]any{{"CONFIG", "SET", "requirepass", "secret"}}, incr, ErrNotRun, "NOAUTH "},
		"no permission":       {[][]any{{"ACL", "SETUSER", "default", "-incr"}}, incr, ErrUnavailable, "can't run this command"},
		"no such key":         {[][]any{{"ACL", "SETUSER", "default", "resetkeys", "~x"}}, incr, ErrUnavailable, "NOPERM "},
		"no script permitted": {[][]any{{"ACL", "SETUSER", "default", "-@scripting"}}, incr, ErrUnavailable, "NOPERM "},
		"wrong type":          {[][]any{{"LPUSH", "k", "v"}}, incr, ErrBroken, "WRONGTYPE "},
		"script error":        {nil, NewScript("incr", "error('no')"), ErrBroken, "ERR user_script:1: no"},
		"syntax error":        {nil, NewScript("incr", "return ("), ErrBroken, "ERR Error compiling script"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			admin := server.Client(t)
			for _, command := range test.prepare {
				require.NoError(t, admin.Do(t.Context(), command...).Err())
			}
			client := server.Client(t, func(o *redis.Options) { o.MaxRetries, o.Password = -1, "" })
			err := run(t, test.script, client)
			require.ErrorIs(t, err, test.want)
			require.Equal(t, test.want != ErrBroken, errors.Is(err, ErrUnavailable))
			require.Equal(t, test.want == ErrNotRun, errors.Is(err, ErrNotRun))
			require.Contains(t, err.Error(), "script incr: ")
			require.Contains(t, err.Error(), test.code)
		})
	}

	t.Run("busy", func(t *testing.T) {
		t.Parallel()
		server := redistest.Start(t, "--busy-reply-threshold", "1")
		var endless sync.WaitGroup
		defer endless.Wait()
		endless.Go(func() {
			patient := server.Client(t, func(o *redis.Options) { o.ReadTimeout = time.Minute })
			_, _ = NewScript("endless", "while true do end").Run(context.Background(), patient, nil, nil)
		})
		client := server.Client(t, func(o *redis.Options) { o.MaxRetries = -1 })
		require.Eventually(t, func() bool {
			_, err := incr.Run(t.Context(), client, []string{"k"}, nil)
			return errors.Is(err, ErrNotRun)
		}, 10*time.Second, time.Millisecond)
		require.NoError(t, client.Do(t.Context(), "SCRIPT", "KILL").Err())
	})
	t.Run("gone", func(t *testing.T) {
		t.Parallel()
		server := redistest.Start(t)
		client := server.Client(t, func(o *redis.Options) { o.ReadTimeout, o.DialerRetries = 50*time.Millisecond, 1 })
		require.NoError(t, client.Ping(t.Context()).Err())
		server.Stop()
		err := run(t, incr, client)
		require.ErrorIs(t, err, ErrUnavailable)
		require.NotErrorIs(t, err, ErrNotRun, "a read that timed out says nothing")
		server.Cont()
		server.Kill()
		require.ErrorIs(t, run(t, incr, server.Client(t, func(o *redis.Options) { o.DialerRetries = 1 })), ErrNotRun)
		require.NoError(t, client.Close())
		require.ErrorIs(t, run(t, incr, client), ErrNotRun)
	})
	t.Run("cancelled", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := incr.Run(ctx, redistest.Start(t).Client(t), []string{"k"}, nil)
		require.ErrorIs(t, err, context.Canceled)
		require.NotErrorIs(t, err, ErrUnavailable)
	})
}

// refusal is an error as Redis sends it.
type refusal string

func (r refusal) Error() string { return string(r) }
func (refusal) RedisError()     {}

func TestClassify(t *testing.T) {
	t.Parallel()
	for want, errs := range map[error][]error{
		ErrNotRun: {
			refusal("LOADING Redis is loading the dataset in memory"), refusal("MISCONF Redis is configured to save RDB snapshots"),
			refusal("CLUSTERDOWN The cluster is down"), refusal("TRYAGAIN Multiple keys request during rehashing of slot"),
			refusal("MOVED 1 127.0.0.1:1"), refusal("ASK 1 127.0.0.1:1"), refusal("WRONGPASS invalid username-password pair"),
			refusal("ERR max number of clients reached"), redis.ErrPoolTimeout, redis.ErrPoolExhausted, redis.ErrClosed,
			&net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded},
		},
		ErrUnavailable: {
			io.EOF, io.ErrUnexpectedEOF, context.DeadlineExceeded, os.ErrDeadlineExceeded, refusal("NOPERM no"),
			refusal("ERR The user executing the script can't access at least one of the keys"),
			&net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}, &net.OpError{Op: "write", Err: net.ErrClosed},
		},
		ErrBroken: {refusal("ERR user_script:1: no"), refusal("WRONGTYPE Operation"), refusal("CROSSSLOT Keys"), refusal("ERR")},
	} {
		for _, err := range errs {
			require.Equal(t, want, classify(err), "%v", err)
			require.Equal(t, want, classify(fmt.Errorf("wrapped: %w", err)), "%v", err)
		}
	}
}

func TestScriptOnACluster(t *testing.T) {
	t.Parallel()
	nodes := redistest.ClusterNodes(t)
	clients := make([]*redis.Client, len(nodes))
	ids := make([]string, len(nodes))
	for i, node := range nodes {
		clients[i] = node.Client(t)
		ids[i] = clients[i].ClusterMyID(t.Context()).Val()
	}
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{nodes[0].Addr()}})
	t.Cleanup(func() { _ = client.Close() })
	do := func(on int, args ...any) {
		t.Helper()
		require.NoError(t, clients[on].Do(t.Context(), args...).Err())
	}
	keys := []string{"sluice:{d}:a", "sluice:{d}:b"} // slot 11298, of the last node
	const slot, from, to = 11298, 2, 0
	s := NewScript("incr", "redis.call('INCR', KEYS[1]) return redis.call('INCR', KEYS[2])")
	calls := int64(0)
	run := func() {
		t.Helper()
		calls++
		reply, err := s.Run(t.Context(), client, keys, []any{rand.IntN(10)})
		require.NoError(t, err)
		require.Equal(t, calls, reply)
	}
	run()
	require.Equal(t, int64(slot), client.ClusterKeySlot(t.Context(), keys[0]).Val())

	// ASK: the slot moves and its keys are there already.
	do(to, "CLUSTER", "SETSLOT", slot, "IMPORTING", ids[from])
	do(from, "CLUSTER", "SETSLOT", slot, "MIGRATING", ids[to])
	host, port, err := net.SplitHostPort(nodes[to].Addr())
	require.NoError(t, err)
	move := func(key string) { do(from, "MIGRATE", host, port, key, 0, 5000) }
	move(keys[0])

	// TRYAGAIN: one of two keys is there. It is asked again until the other one has come.
	_, err = s.call(t.Context(), client, keys, nil)
	require.True(t, redis.IsTryAgainError(err), "%v", err)
	_, err = s.Run(t.Context(), client, keys, nil)
	require.ErrorIs(t, err, ErrNotRun, "in the end it gives up")
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(10*time.Millisecond, cancel)
	_, err = s.Run(ctx, client, keys, nil)
	require.ErrorIs(t, err, context.Canceled)
	time.AfterFunc(5*time.Millisecond, func() { _ = clients[from].Migrate(t.Context(), host, port, keys[1], 0, 5*time.Second).Err() })
	run()
	run() // ASK

	// MOVED: the client does not know yet.
	for on := range nodes {
		do(on, "CLUSTER", "SETSLOT", slot, "NODE", ids[to])
	}
	run()
	run()
	require.Equal(t, "5", clients[to].Get(t.Context(), keys[0]).Val())

	// Lost replies are not made good by the cluster client either.
	t.Run("never replayed", func(t *testing.T) {
		proxy := redistest.NewProxy(t, nodes[to].Addr())
		client := redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: []string{proxy.Addr()},
			ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
				return []redis.ClusterSlot{{Start: 0, End: 16383, Nodes: []redis.ClusterNode{{Addr: proxy.Addr()}}}}, nil
			},
		})
		defer func() { _ = client.Close() }()
		_, err := s.Run(t.Context(), client, keys, nil)
		require.NoError(t, err)
		proxy.DropReplies(1)
		_, err = s.Run(t.Context(), client, keys, nil)
		require.ErrorIs(t, err, ErrUnavailable)
		require.NotErrorIs(t, err, ErrNotRun)
		require.Equal(t, 1, proxy.Dropped())
		require.Equal(t, "7", clients[to].Get(t.Context(), keys[0]).Val())
	})
}

// With Redis at the other end: many callers, one script call each time, every item done once.
func TestCoalescerRunsAScript(t *testing.T) {
	t.Parallel()
	client, key := redistest.Shared(t), redistest.Name(t)
	s := NewScript("incrs", "local r = {} for i = 1, ARGV[1] do r[i] = redis.call('INCR', KEYS[1]) end return r")
	calls := 0
	c := NewCoalescer(CoalescerConfig[int, int64]{Exec: func(batch []int) ([]int64, error) {
		calls++
		reply, err := s.Run(context.Background(), client, []string{key}, []any{len(batch)})
		if err != nil {
			return nil, err
		}
		answers := make([]int64, 0, len(batch))
		for _, r := range reply.([]any) {
			answers = append(answers, r.(int64))
		}
		return answers, nil
	}})
	const callers, each = 64, 50
	var callersDone sync.WaitGroup
	var seen sync.Map
	for range callers {
		callersDone.Go(func() {
			for range each {
				answer, err := c.Do(t.Context(), 0, 10*time.Second)
				if _, twice := seen.LoadOrStore(answer, true); twice || err != nil {
					t.Errorf("answer %d, twice: %v, %v", answer, twice, err)
				}
			}
		})
	}
	callersDone.Wait()
	c.Close()
	total, err := client.Get(t.Context(), key).Int()
	require.NoError(t, err)
	require.Equal(t, callers*each, total)
	require.Less(t, calls, total/4)
}
