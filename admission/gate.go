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
	// StoreCall is one script call.
	StoreCall(op string, took time.Duration)
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

	// healths has a Health for each store.timeout that policies have, since what is late for one is in time for another;
	// that of 0 is the store's own.
	healths sync.Map // time.Duration -> *bucket.Health

	mu      sync.RWMutex
	entries map[string]*entry
	missing map[string]time.Time // names that Redis did not know, and until when that is believed

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
		Observe: func(op string, took time.Duration, _ error) {
			g.metrics.StoreCall(op, took)
			// Calls of several dependencies end at the same time: each counts the loads since the count before it.
			for n := g.store.Loads() - loads.Load(); n > 0; n-- {
				loads.Add(1)
				g.metrics.ScriptLoaded()
			}
		},
	})
	g.running, g.stop = context.WithCancel(context.Background())
	g.background.Go(g.restoreLost)
	return g
}

// Close ends what runs in the background and waits for asks under way.
func (g *Gate) Close() {
	g.stop()
	g.background.Wait()
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, e := range g.entries {
		e.limiter.Close()
	}
}

// health is that of the store as the policy sees it; nil: as the gate itself does.
func (g *Gate) health(p *Policy) *bucket.Health {
	timeout := time.Duration(0)
	if p != nil {
		timeout = p.StoreTimeout()
	}
	if h, ok := g.healths.Load(timeout); ok {
		return h.(*bucket.Health) //nolint:forcetypeassert // nothing else is stored
	}
	h, _ := g.healths.LoadOrStore(timeout, bucket.NewHealth(g.now, func(degraded bool) { g.modeChanged(timeout, degraded) }))
	return h.(*bucket.Health) //nolint:forcetypeassert // nothing else is stored
}

// modeChanged is called once per change of the store's health as policies of that timeout see it.
func (g *Gate) modeChanged(timeout time.Duration, degraded bool) {
	if degraded {
		g.log.ErrorContext(g.running, "the store does not answer in time; asks are answered by each policy's store.on_failure",
			slog.String("timeout", timeout.String()))
	} else {
		g.log.InfoContext(g.running, "the store answers again", slog.String("timeout", timeout.String()))
	}
	g.mu.RLock()
	defer g.mu.RUnlock()
	for _, e := range g.entries {
		p := e.policy.Load()
		if p.StoreTimeout() != timeout {
			continue
		}
		mode := storeRedis
		if degraded {
			mode = string(p.OnFailure())
		}
		g.metrics.StoreMode(e.name, mode)
	}
}

// mode is how the policy's asks are answered now.
func (g *Gate) mode(p *Policy) string {
	if g.health(p).Degraded() {
		return string(p.OnFailure())
	}
	return storeRedis
}

// maxRounds is how often an ask is put to Redis at most: once, and again after the policy that it was compiled from was
// found to be another, or gone.
const maxRounds = 3

// errMoving: the policy changed as often as an ask was put to Redis.
var errMoving = fmt.Errorf("%w: the policy changes faster than it can be followed", bucket.ErrUnavailable)

// grantTimeout bounds the verbs on a grant. Nobody can answer them without the store, and a repetition is safe.
const grantTimeout = 2 * time.Second

// Admit answers one ask. Errors: *FieldError, ErrUnknownDependency, bucket.ErrOverloaded, bucket.ErrClosed; and
// bucket.ErrUnavailable where the store is in trouble and what was asked for cannot be answered without it. A plain ask is
// answered by the policy's store.on_failure then, within its store.timeout.
func (g *Gate) Admit(ctx context.Context, dependency string, a Ask) (Decision, error) {
	e, err := g.entry(ctx, dependency)
	if err != nil {
		return Decision{}, err
	}
	for round := 1; ; round++ {
		p := e.policy.Load()
		q, never, err := p.compile(&a)
		if err != nil {
			return Decision{}, err
		}
		if never != "" {
			return p.neverFits(q.Set, never, g.store.Now()), nil
		}
		if !g.health(p).Allow() {
			return g.withoutStore(p, q, bucket.ErrUnavailable)
		}
		ans, err := e.limiter.Do(ctx, q, p.StoreTimeout())
		g.report(e, p, err)
		switch {
		case err == nil:
			return p.decision(&q, &ans), nil
		case errors.Is(err, bucket.ErrUnavailable):
			return g.withoutStore(p, q, err)
		case !policyMoved(err):
			return Decision{}, err
		case round == maxRounds:
			return g.withoutStore(p, q, errMoving)
		}
		if err := g.follow(ctx, e, p, err); err != nil {
			if errors.Is(err, bucket.ErrUnavailable) {
				return g.withoutStore(p, q, err)
			}
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
	for round := 1; ; round++ {
		p := e.policy.Load()
		b, err := p.compileBatch(asks, todo, allOrNothing, g.store.Now())
		if err != nil {
			return nil, err
		}
		for i, d := range b.decided {
			decisions[i] = d
		}
		todo = b.todo
		if len(todo) == 0 {
			return decisions, nil
		}
		if g.health(p).Allow() {
			var answers []bucket.Answer
			if allOrNothing {
				answers, err = e.limiter.DoAll(ctx, b.asks, p.StoreTimeout())
			} else {
				answers, err = e.limiter.DoEach(ctx, b.asks, p.StoreTimeout())
			}
			g.report(e, p, err)
			for i := range answers {
				decisions[todo[i]] = p.decision(&b.asks[i], &answers[i])
			}
			todo, b.asks = todo[len(answers):], b.asks[len(answers):]
			if err == nil {
				return decisions, nil
			}
			if policyMoved(err) && round < maxRounds {
				if err = g.follow(ctx, e, p, err); err == nil {
					continue
				}
			} else if policyMoved(err) {
				err = errMoving
			}
		} else {
			err = bucket.ErrUnavailable
		}
		return g.restOfBatch(p, b, todo, decisions, err)
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
		d, err := Decision{}, cause
		if away {
			d, err = g.withoutStore(p, b.asks[i], cause)
		}
		switch {
		case err != nil && (nothing || b.together):
			return nil, err
		case err != nil:
			d = g.refusedWithout(p, ReasonStoreUnavailable)
			if errors.Is(err, bucket.ErrOverloaded) {
				d.Reason = ReasonOverloaded
			}
		}
		decisions[todo[i]] = d
	}
	return decisions, nil
}

// Grant settles, releases, extends or cancels what an admitted ask holds. Errors: *FieldError, ErrUnknownDependency,
// ErrUnknownGrant, ErrNotCancellable, ErrGrantEnded, bucket.ErrUnavailable, bucket.ErrOverloaded.
func (g *Gate) Grant(ctx context.Context, dependency, id string, op GrantOp) (Settlement, error) {
	e, err := g.entry(ctx, dependency)
	if err != nil {
		return Settlement{}, err
	}
	if !validID(id) {
		return Settlement{}, ErrUnknownGrant
	}
	p := e.policy.Load()
	if !g.health(p).Allow() {
		return Settlement{}, bucket.ErrUnavailable
	}
	ctx, cancel := context.WithTimeoutCause(ctx, grantTimeout, bucket.ErrTimeout)
	defer cancel()
	tenant, class, err := g.holder(ctx, e, id)
	g.report(e, p, err)
	if err != nil {
		return Settlement{}, err
	}
	for round := 1; ; round++ {
		p = e.policy.Load()
		q, err := p.compileGrant(id, tenant, class, op)
		if err != nil {
			return Settlement{}, err
		}
		ans, err := e.limiter.Do(ctx, q, grantTimeout)
		g.report(e, p, err)
		switch {
		case err == nil:
			return g.settlement(&q, &ans)
		case !policyMoved(err):
			return Settlement{}, err
		case round == maxRounds:
			return Settlement{}, errMoving
		}
		if err := g.follow(ctx, e, p, err); err != nil {
			return Settlement{}, err
		}
	}
}

// holder reads whose the grant is.
func (g *Gate) holder(ctx context.Context, e *entry, id string) (tenant, class string, err error) {
	tenant, class, err = g.store.Holder(ctx, e.name, id)
	if errors.Is(err, bucket.ErrNoGrant) {
		return "", "", ErrUnknownGrant
	}
	return tenant, class, err
}

// report tells the store's health what came of an ask. A policy that moved and a grant that is gone are answers too, and
// all who waited for one call saw the same trouble.
func (g *Gate) report(e *entry, p *Policy, err error) {
	if policyMoved(err) || errors.Is(err, ErrUnknownGrant) {
		err = nil
	}
	if errors.Is(err, bucket.ErrUnavailable) && !e.limiter.Overrun() {
		return
	}
	g.health(p).Report(err)
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
	if p.OnFailure() == FailOpen {
		d.Outcome, d.ID = OutcomeAdmitted, q.ID
		d.Detail = "The store did not answer in time and the policy admits without it (store.on_failure: open)."
		return d, nil
	}
	d.Outcome, d.Reason, d.RetryAfter = OutcomeRejected, ReasonStoreUnavailable, backSoon()
	d.Detail = "The store did not answer in time and the policy refuses without it (store.on_failure: closed)."
	return d, nil
}

// refusedWithout refuses an ask that could not be decided.
func (g *Gate) refusedWithout(p *Policy, reason Reason) Decision {
	return Decision{
		Outcome: OutcomeRejected, Reason: reason, RetryAfter: backSoon(), Source: SourceLocal, StoreMode: g.mode(p),
		PolicyVersion: p.version, Now: g.store.Now(), Detail: "The store did not answer in time.",
	}
}

// backSoon is a second and jitter: when to try a store that is away.
func backSoon() time.Duration {
	return time.Second + time.Duration(rand.Int64N(int64(time.Second)))
}

// deaf is the Recorder of a gate without one.
type deaf struct{}

// StoreCall does nothing, as all its methods.
func (deaf) StoreCall(string, time.Duration) {}

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
