package admission

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluicehq/sluice/bucket"
)

// Recorder is told what the gate does, for metrics.
type Recorder interface {
	// StoreCall is one script call, and the error with which it failed.
	StoreCall(op string, took time.Duration, err error)
	// StoreMode is how the dependency's asks are answered from now on: "redis", or its failure mode.
	StoreMode(dependency, mode string)
	// Policy is a policy version that has come into force here.
	Policy(dependency string, version int64, classes []string, limits []*bucket.Limit)
	// ScriptLoaded is a script that had to be sent as source.
	ScriptLoaded()
	// Repaired is something that had to be put right: a policy that Redis had lost, a release after the grant's end.
	Repaired(what string, n int)
}

// storeRedis is the mode in which Redis decides.
const storeRedis = "redis"

// GateConfig is what a Gate needs. Client and Logger are required; the caller keeps ownership of both.
type GateConfig struct {
	Client  redis.UniversalClient
	Logger  *slog.Logger
	Metrics Recorder // nil: nobody is told
	// Clock replaces the Lua source of the scripts' time; tests move a clock by it.
	Clock string
}

// Gate answers asks against policies that all its replicas share in Redis. It is safe for concurrent use.
type Gate struct {
	log      *slog.Logger
	metrics  Recorder
	client   redis.UniversalClient
	store    *bucket.Store
	policies *Store
	now      func() time.Time

	healths healths
	full    atomic.Bool    // the store has no memory left
	probing *bucket.Script // see probe

	mu      sync.RWMutex
	closed  bool
	entries map[string]*entry
	missing map[string]time.Time // names that Redis did not know, and until when that is believed

	looking sync.Mutex
	look    *look // under way, see Ready

	background sync.WaitGroup
	stop       context.CancelFunc
	running    context.Context //nolint:containedctx // ends the background work at Close
}

// NewGate returns a Gate that knows no policies but those that Redis holds. Close it.
func NewGate(c GateConfig) *Gate {
	g := &Gate{
		log: c.Logger, metrics: c.Metrics, client: c.Client, policies: NewStore(c.Client),
		entries: map[string]*entry{}, missing: map[string]time.Time{},
		now: time.Now, //nolint:forbidigo // paces what this process does by itself, decides nothing
	}
	if g.metrics == nil {
		g.metrics = deaf{}
	}
	var loads atomic.Int64
	g.store = bucket.NewStore(c.Client, bucket.StoreOptions{
		Clock: c.Clock,
		Observe: func(op string, took time.Duration, err error) {
			g.metrics.StoreCall(op, took, err)
			// Calls of several dependencies end at the same time: who moves the count says so.
			for told := loads.Load(); told < g.store.Loads(); told = loads.Load() {
				if loads.CompareAndSwap(told, told+1) {
					g.metrics.ScriptLoaded()
				}
			}
		},
	})
	g.healths.now, g.healths.onChange = g.now, g.modeChanged
	g.probing = bucket.NewScript("probe", probeSource)
	g.running, g.stop = context.WithCancel(context.Background())
	g.background.Go(g.tend)
	return g
}

// Close ends what runs in the background and waits for asks under way.
func (g *Gate) Close() {
	g.stop()
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	g.background.Wait()
	for _, e := range g.all() {
		e.limiter.Close()
	}
}

// inBackground runs f beside the caller, and Close waits for it; false: the gate is closed.
func (g *Gate) inBackground(f func()) bool {
	g.mu.RLock()
	defer g.mu.RUnlock()
	if !g.closed {
		g.background.Go(f)
	}
	return !g.closed
}

// maxRounds is how often an ask is put to Redis at most: once, and again after the policy that it was compiled from was
// found to be another, or gone.
const maxRounds = 3

// turn counts the rounds of an ask and the time it has for all of them.
type turn struct {
	round    int
	within   time.Duration
	deadline time.Time
}

// left is what is left of the time, which begins with the first round.
func (t *turn) left(now time.Time, within time.Duration) time.Duration {
	if t.deadline.IsZero() {
		t.within, t.deadline = within, now.Add(within)
	}
	return max(t.deadline.Sub(now), time.Nanosecond)
}

// after tells the store's health what came of a round, and where the policy was another one brings the entry to the one
// in force: again is true then, and the ask is to be compiled anew.
func (g *Gate) after(ctx context.Context, e *entry, p *Policy, t *turn, err error) (again bool, _ error) {
	t.round++
	switch {
	case !policyMoved(err):
	case t.round == maxRounds:
		g.report(e, t.within, nil)
		return false, errMoving
	default:
		err = g.follow(ctx, e, p, t.deadline)
		again = err == nil
	}
	g.report(e, t.within, err)
	return again, err
}

// errMoving: the policy changed as often as an ask was put to Redis.
var errMoving = fmt.Errorf("%w: the policy changes faster than it can be followed", bucket.ErrUnavailable)

// Admit answers one ask. Errors: *FieldError, ErrUnknownDependency, bucket.ErrOverloaded, bucket.ErrClosed; and
// bucket.ErrUnavailable where the store is in trouble and what was asked for cannot be answered without it. A plain ask is
// answered by the policy's store.on_failure then, within its store.timeout.
func (g *Gate) Admit(ctx context.Context, dependency string, a Ask) (Decision, error) {
	e, err := g.entry(ctx, dependency)
	if err != nil {
		return Decision{}, err
	}
	for t := (turn{}); ; {
		p := e.policy.Load()
		q, never, err := p.compile(&a)
		if err != nil {
			return Decision{}, err
		}
		// One with a key may have been admitted when the limit was larger, and is told so again.
		if never != "" && (q.Key == "" || g.healths.of(p).Degraded()) {
			return p.neverFits(q.Set, never, g.store.Now()), nil
		}
		if g.healths.of(p).Degraded() {
			return g.withoutStore(p, q, bucket.ErrUnavailable)
		}
		ans, err := e.limiter.Do(ctx, q, t.left(g.now(), p.StoreTimeout()))
		again, err := g.after(ctx, e, p, &t, err)
		switch {
		case again:
		case never != "" && (err == nil && ans.Outcome == bucket.Refused || errors.Is(err, bucket.ErrUnavailable)):
			return p.neverFits(q.Set, never, g.store.Now()), nil
		case err == nil:
			return p.decision(&q, &ans), nil
		case errors.Is(err, bucket.ErrUnavailable):
			return g.withoutStore(p, q, err)
		default:
			return Decision{}, err
		}
	}
}

// AdmitBatch answers 1 to 1,000 asks in their order, each on its own or, with allOrNothing, 1 to 64 together or not at
// all. Errors are as those of Admit and mean that nothing was taken; once some asks were decided, trouble with the others is
// a decision on each of those.
func (g *Gate) AdmitBatch(ctx context.Context, dependency string, asks []Ask, allOrNothing bool) ([]Decision, error) {
	e, err := g.entry(ctx, dependency)
	if err != nil {
		return nil, err
	}
	decisions := make([]Decision, len(asks))
	todo := make([]int, len(asks))
	for i := range todo {
		todo[i] = i
	}
	var p *Policy
	var b batch
	asked := false
	for t := (turn{}); ; {
		now := e.policy.Load()
		next, err := now.compileBatch(asks, todo, allOrNothing, g.store.Now())
		if err != nil && asked { // a class that some of the batch have has just been removed, and others were answered
			return g.restOfBatch(p, b, todo, decisions, err)
		} else if err != nil {
			return nil, err
		}
		p, b = now, next
		for i, d := range b.decided {
			decisions[i] = d
		}
		todo = b.todo
		if len(todo) == 0 {
			return decisions, nil
		}
		if g.healths.of(p).Degraded() {
			return g.restOfBatch(p, b, todo, decisions, bucket.ErrUnavailable)
		}
		t.within = p.StoreTimeout() // of each call that the batch takes
		var answers []bucket.Answer
		if allOrNothing {
			answers, err = e.limiter.DoAll(ctx, b.asks, t.within)
		} else {
			answers, err = e.limiter.DoEach(ctx, b.asks, t.within)
		}
		t.deadline = g.now().Add(t.within)
		again, err := g.after(ctx, e, p, &t, err)
		asked = asked || len(answers) > 0
		for i := range answers {
			if limit := b.never[todo[i]]; limit != "" && answers[i].Outcome == bucket.Refused {
				decisions[todo[i]] = p.neverFits(b.asks[i].Set, limit, g.store.Now())
				continue
			}
			decisions[todo[i]] = p.decision(&b.asks[i], &answers[i])
		}
		todo, b.asks = todo[len(answers):], b.asks[len(answers):]
		switch {
		case again:
		case err == nil:
			return decisions, nil
		default:
			return g.restOfBatch(p, b, todo, decisions, err)
		}
	}
}

// restOfBatch answers what was not decided: an error where nothing was, otherwise each as Admit would.
func (g *Gate) restOfBatch(p *Policy, b batch, todo []int, decisions []Decision, cause error) ([]Decision, error) {
	away := errors.Is(cause, bucket.ErrUnavailable)
	if b.together && (!away || p.OnFailure() != FailOpen) {
		return nil, cause
	}
	nothing := len(todo) == len(decisions)
	for i := range todo {
		if limit := b.never[todo[i]]; limit != "" {
			decisions[todo[i]] = p.neverFits(b.asks[i].Set, limit, g.store.Now())
			continue
		}
		d, err := Decision{}, cause
		if away {
			d, err = g.withoutStore(p, b.asks[i], cause)
		}
		switch {
		case err != nil && (nothing || b.together):
			return nil, err
		case err != nil:
			d = g.refusedWithout(p, ReasonStoreUnavailable)
			d.Detail = err.Error()
			if errors.Is(err, bucket.ErrOverloaded) {
				d.Reason = ReasonOverloaded
			}
		}
		decisions[todo[i]] = d
	}
	return decisions, nil
}

func policyMoved(err error) bool {
	var changed *bucket.ChangedError
	return errors.Is(err, bucket.ErrNoPolicy) || errors.As(err, &changed)
}

// withoutStore answers a plain ask by the policy's failure mode.
func (g *Gate) withoutStore(p *Policy, q bucket.Ask, cause error) (Decision, error) {
	if q.Verb != bucket.Take || q.DryRun {
		return Decision{}, fmt.Errorf("%w: only plain asks are answered without it", cause)
	}
	d := Decision{
		Source: SourceLocal, StoreMode: string(p.OnFailure()), PolicyVersion: p.version, Now: g.store.Now(),
	}
	why := "did not answer in time"
	if errors.Is(cause, bucket.ErrFull) {
		why = "has no memory left"
	}
	if p.OnFailure() == FailOpen {
		d.Outcome, d.ID = OutcomeAdmitted, q.ID
		d.Detail = "The store " + why + " and the policy admits without it (store.on_failure: open)."
		return d, nil
	}
	d.Outcome, d.Reason, d.RetryAfter = OutcomeRejected, ReasonStoreUnavailable, backSoon()
	d.Detail = "The store " + why + " and the policy refuses without it (store.on_failure: closed)."
	return d, nil
}

// refusedWithout refuses an ask that could not be decided.
func (g *Gate) refusedWithout(p *Policy, reason Reason) Decision {
	return Decision{
		Outcome: OutcomeRejected, Reason: reason, RetryAfter: backSoon(), Source: SourceLocal, StoreMode: g.mode(p),
		PolicyVersion: p.version, Now: g.store.Now(),
	}
}

// backSoon is a second and jitter: when to try a store that is away.
func backSoon() time.Duration {
	return time.Second + time.Duration(rand.Int64N(int64(time.Second)))
}

// deaf is the Recorder of a gate without one.
type deaf struct{}

// StoreCall does nothing, as all its methods.
func (deaf) StoreCall(string, time.Duration, error) {}

// StoreMode does nothing.
func (deaf) StoreMode(string, string) {}

// Policy does nothing.
func (deaf) Policy(string, int64, []string, []*bucket.Limit) {}

// ScriptLoaded does nothing.
func (deaf) ScriptLoaded() {}

// Repaired does nothing.
func (deaf) Repaired(string, int) {}

// Check is a *bucket.EvictionError where Redis may drop keys, which it must not, and bucket.ErrUnavailable while it is away.
func (g *Gate) Check(ctx context.Context) error { return g.store.CheckEviction(ctx) }
