package bucket

import (
	"context"
	"crypto/rand"
	_ "embed"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// ErrNoPolicy means that Redis holds no policy of the dependency: install one and ask again. Nothing was decided.
var ErrNoPolicy = errors.New("no policy installed")

// errStale means that the windows of a quota that a call carried do not hold the time of Redis.
var errStale = errors.New("stale window")

// ChangedError means that another policy version is in force than the asks were compiled from. Nothing was decided.
type ChangedError struct{ Version int64 }

func (e *ChangedError) Error() string {
	return "policy changed to version " + strconv.FormatInt(e.Version, 10)
}

//go:embed lua/clock.lua
var luaClock string

//go:embed lua/dependency.lua
var luaDependency string

//go:embed lua/call.lua
var luaCall string

//go:embed lua/one.lua
var luaOne string

//go:embed lua/short_state.lua
var luaShortState string

//go:embed lua/short.lua
var luaShort string

//go:embed lua/token.lua
var luaToken string

//go:embed lua/window.lua
var luaWindow string

//go:embed lua/slots.lua
var luaSlots string

//go:embed lua/limits.lua
var luaLimits string

//go:embed lua/decide.lua
var luaDecide string

//go:embed lua/ask.lua
var luaAsk string

//go:embed lua/verbs.lua
var luaVerbs string

//go:embed lua/items.lua
var luaItems string

// StoreOptions are a Store's settings; the zero value is what production uses.
type StoreOptions struct {
	// Observe, if set, is told of every script call: how long it took and how it ended.
	Observe func(op string, took time.Duration, err error)
	// Clock, if set, replaces the Lua source of the time. Tests move a clock by it.
	Clock string
	// MaxPending bounds how many asks of one dependency wait in this process; 0: 16384. More are ErrOverloaded.
	MaxPending int
}

// Store is one process's way to the limits in one Redis. The caller keeps ownership of the client.
type Store struct {
	client redis.UniversalClient
	decide *Script
	opts   StoreOptions
	id     string // of this process's remembered replies

	clock redisClock
}

// NewStore returns a Store on the client, whose commands may time out late: callers do not wait for them.
func NewStore(client redis.UniversalClient, opts StoreOptions) *Store {
	clock := opts.Clock
	if clock == "" {
		clock = luaClock
	}
	return &Store{
		client: client,
		decide: NewScript("decide", clock, luaDependency, luaCall, luaOne, luaShortState, luaShort, luaToken, luaWindow, luaSlots,
			luaLimits, luaDecide, luaAsk, luaVerbs, luaItems),
		opts: opts,
		id:   strings.ToLower(rand.Text()[:20]),
	}
}

// Loads counts how often Redis had to be sent the script's source.
func (s *Store) Loads() int64 { return s.decide.Loads() }

// Now is this process's estimate of the Redis clock. Before the first call it is the host's.
func (s *Store) Now() time.Time { return s.clock.now() }

// redisClock estimates TIME from the last reply and this process's monotonic clock.
type redisClock struct {
	last atomic.Pointer[clockReading]
}

type clockReading struct {
	redis time.Time
	local time.Time // with its monotonic reading
}

func (c *redisClock) now() time.Time {
	r := c.last.Load()
	if r == nil {
		return time.Now()
	}
	return r.redis.Add(time.Since(r.local))
}

func (c *redisClock) observe(t time.Time) {
	c.last.Store(&clockReading{redis: t, local: time.Now()})
}

// Limiter asks the limits of one dependency. It is safe for concurrent use; concurrent asks share script calls.
type Limiter struct {
	flight atomic.Pointer[flight] // the call under way, or the last one
	store  *Store
	prefix string
	calls  *Coalescer[*call, reply]

	singles sync.Pool // of *call with one ask

	// The coalescer makes one call at a time.
	encoder *encoder
	number  uint64 // of the last repeatable call
	reply   string
}

// Limiter returns a way to the dependency's limits. Close it when it is no longer used.
func (s *Store) Limiter(dependency string) *Limiter {
	l := &Limiter{store: s, prefix: Prefix(dependency), encoder: newEncoder(Prefix(dependency))}
	l.reply = l.prefix + "reply:" + s.id + strings.ToLower(rand.Text()[:8])
	l.calls = NewCoalescer(CoalescerConfig[*call, reply]{
		Exec:       l.exec,
		Lane:       func(c *call) string { return c.asks[0].Tenant },
		Size:       (*call).size,
		Together:   func(first, c *call) bool { return first.asks[0].Set.version == c.asks[0].Set.version },
		Left:       undoLeft,
		NothingRan: nothingRan,
		MaxPending: s.opts.MaxPending,
	})
	return l
}

// Close refuses further asks and waits for those under way.
func (l *Limiter) Close() { l.calls.Close() }

// Do asks once. within bounds how long the caller waits for the answer, 0: as long as ctx. After ErrTimeout, or when ctx
// ends, what may have been taken is given back by the next call, unless the ask Stands or has a Key.
//
// Errors: ErrUnavailable (ErrTimeout among them), ErrOverloaded, ErrClosed, ErrNoPolicy, *ChangedError, ctx's own.
func (l *Limiter) Do(ctx context.Context, a Ask, within time.Duration) (Answer, error) {
	c, ok := l.singles.Get().(*call)
	if !ok {
		c = &call{}
	}
	c.setOne(a)
	r, err := l.calls.Do(ctx, c, within)
	if err != nil {
		return Answer{}, err // the batch may still hold on to c
	}
	*c = call{}
	l.singles.Put(c)
	return r.answers[0], nil
}

// DoAll admits all asks or none; there are at most MaxGroup, all Take or Reserve of one policy version, and all or none a
// DryRun. The answers of the others are Aborted where one is refused.
func (l *Limiter) DoAll(ctx context.Context, asks []Ask, within time.Duration) ([]Answer, error) {
	if len(asks) == 0 {
		return nil, nil
	}
	if len(asks) > MaxGroup {
		return nil, fmt.Errorf("bucket: %d asks succeed together, at most %d do", len(asks), MaxGroup)
	}
	r, err := l.calls.Do(ctx, &call{asks: asks, group: true}, within)
	return r.answers, err
}

// DoEach asks each on its own, in order, in as few calls as may be. Where a call fails, the answers before it are returned
// with the error.
func (l *Limiter) DoEach(ctx context.Context, asks []Ask, within time.Duration) ([]Answer, error) {
	answers := make([]Answer, 0, len(asks))
	for len(asks) > 0 {
		n := min(len(asks), maxEach)
		r, err := l.calls.Do(ctx, &call{asks: asks[:n]}, within)
		if err != nil {
			return answers, err
		}
		answers = append(answers, r.answers...)
		asks = asks[n:]
	}
	return answers, nil
}

const (
	// MaxGroup is how many asks may succeed together.
	MaxGroup = 64
	// maxEach is how many independent asks go out as one piece.
	maxEach = 64
)

// exec sends one batch. One that may have run is repeated, once, if that takes nothing twice: because its reply is kept
// under a number, or because each ask has a key under which its answer is remembered. One that was refused is not: what
// refused it (a replica, a server that loads) refuses it again.
func (l *Limiter) exec(batch []*call) ([]reply, error) {
	number, replyKey := "", ""
	keyed := every(batch, (*Ask).keyed)
	if !keyed && !every(batch, (*Ask).forgotten) {
		l.number++
		number, replyKey = strconv.FormatUint(l.number, 10), l.reply
	}
	f := &flight{begin: time.Now()}
	l.flight.Store(f)
	defer func() { f.took.Store(int64(time.Since(f.begin))) }()
	now := l.store.Now()
	mayHaveRun := false
	for try := 0; ; try++ {
		replies, at, err := l.send(batch, number, replyKey, now)
		switch {
		case err == nil:
			if mayHaveRun && keyed {
				firstHand(batch, replies)
			}
			return replies, nil
		case try < 2 && errors.Is(err, errStale):
			now = at
		case try == 0 && errors.Is(err, ErrUnavailable) && !errors.Is(err, ErrNotRun) && (keyed || number != ""):
			mayHaveRun = true
		case mayHaveRun && errors.Is(err, ErrNotRun):
			return nil, fmt.Errorf("%w: a call may have run, and its repetition: %v", ErrUnavailable, err) //nolint:errorlint // not ErrNotRun
		default:
			return nil, err
		}
	}
}

func (l *Limiter) send(batch []*call, number, replyKey string, now time.Time) ([]reply, time.Time, error) {
	version := itoa(batch[0].asks[0].Set.version)
	if everyVersion(batch) {
		version = ""
	}
	keys, args := l.encoder.encode(now, version, batch, number, replyKey)
	begin := time.Now()
	// Callers leave when their time is up; the command is left to finish, because a deadline of milliseconds would drop
	// and re-dial connections whenever Redis is merely slow.
	raw, err := l.store.decide.Run(context.Background(), l.store.client, keys, args)
	if l.store.opts.Observe != nil {
		l.store.opts.Observe("decide", time.Since(begin), err)
	}
	if err != nil {
		return nil, time.Time{}, err
	}
	replies, at, err := decode(raw, batch)
	if !at.IsZero() {
		l.store.clock.observe(at)
	}
	return replies, at, err
}

// every reports whether all asks of the batch are so and may be sent without a number; groups may not.
func every(batch []*call, is func(*Ask) bool) bool {
	for _, c := range batch {
		if c.group {
			return false
		}
		for i := range c.asks {
			if !is(&c.asks[i]) {
				return false
			}
		}
	}
	return true
}

// everyVersion reports whether the batch gives back what departed callers took and does nothing else. It is right whatever
// policy is in force: it says which limits were charged, and by which of their parameters.
func everyVersion(batch []*call) bool {
	return every(batch, func(a *Ask) bool { return a.Verb == Undo })
}

// nothingRan reports whether the error means that nothing of a batch was done.
func nothingRan(err error) bool {
	var changed *ChangedError
	return errors.Is(err, ErrNotRun) || errors.Is(err, ErrNoPolicy) || errors.As(err, &changed)
}

// forgotten reports whether nothing is known of the ask but its answer, so that a repetition would take again.
func (a *Ask) forgotten() bool { return a.plain() || a.Verb == View }

// keyed reports whether the ask's answer is remembered where it took anything.
func (a *Ask) keyed() bool { return a.Key != "" && (a.Verb == Take || a.Verb == Reserve) && !a.DryRun }

// firstHand takes back from answers of a repeated call that they were given before: what was remembered under an ask's own
// id was given to nobody.
func firstHand(batch []*call, replies []reply) {
	for i, c := range batch {
		for j := range c.asks {
			if ans := &replies[i].answers[j]; ans.ID == c.asks[j].ID {
				ans.Replayed = false
			}
		}
	}
}
