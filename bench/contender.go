package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"

	"github.com/sluicehq/sluice/admission"
	"github.com/sluicehq/sluice/bucket"
)

// contender is one way of asking. open prepares it on an empty server.
type contender struct {
	name string
	open func(ctx context.Context, addr string) (askFunc, func() error, error)
}

const (
	dependency = "bench"
	// patience is how long an ask may take. It is far beyond what is seen, but the timer behind it is part of the cost.
	patience = time.Second
)

// peerPool is the peer's pool: a connection for every caller, which serves it best.
const peerPool = 512

// redisRate asks one bucket of redis_rate, one script call per decision.
func redisRate(perSecond int) contender {
	return contender{name: "redis_rate v10", open: func(_ context.Context, addr string) (askFunc, func() error, error) {
		client := redis.NewClient(&redis.Options{Addr: addr, PoolSize: peerPool})
		limiter := redis_rate.NewLimiter(client)
		limit := redis_rate.PerSecond(perSecond)
		return func(ctx context.Context, _, _ int) (bool, error) {
			r, err := limiter.Allow(ctx, dependency, limit)
			if err != nil {
				return false, err
			}
			return r.Allowed > 0, nil
		}, client.Close, nil
	}}
}

// install makes the document the dependency's policy and compiles it.
func install(ctx context.Context, client redis.UniversalClient, doc admission.DependencyDocument) (*admission.Policy, error) {
	version, _, err := admission.NewStore(client).Install(ctx, dependency, doc, 0)
	if err != nil {
		return nil, err
	}
	return admission.Compile(dependency, version, doc)
}

// ours asks through a Limiter, which groups what is asked while a call is under way. make builds a caller's n-th ask.
func ours(doc admission.DependencyDocument, build func(p *admission.Policy) (func(caller, n int) bucket.Ask, error)) contender {
	return contender{name: "sluice", open: func(ctx context.Context, addr string) (askFunc, func() error, error) {
		client := redis.NewClient(&redis.Options{Addr: addr})
		fail := func(err error) (askFunc, func() error, error) { return nil, nil, errors.Join(err, client.Close()) }
		policy, err := install(ctx, client, doc)
		if err != nil {
			return fail(err)
		}
		next, err := build(policy)
		if err != nil {
			return fail(err)
		}
		limiter := bucket.NewStore(client, bucket.StoreOptions{}).Limiter(dependency)
		ask := func(ctx context.Context, caller, n int) (bool, error) {
			a, err := limiter.Do(ctx, next(caller, n), patience)
			return a.Outcome == bucket.Admitted, err
		}
		return ask, func() error { limiter.Close(); return client.Close() }, nil
	}}
}

// plainAsk is every caller's ask for one request of no tenant.
func plainAsk(p *admission.Policy) (func(caller, n int) bucket.Ask, error) {
	set, err := p.Set("", "default")
	return func(int, int) bucket.Ask { return bucket.Ask{Set: set} }, err
}

// tenantAsk spreads the asks over that many tenants; with keys each has an idempotency key that occurs once.
func tenantAsk(tenants int, keys bool) func(p *admission.Policy) (func(caller, n int) bucket.Ask, error) {
	return func(p *admission.Policy) (func(caller, n int) bucket.Ask, error) {
		names := make([]string, tenants)
		sets := make([]*bucket.Set, tenants)
		for i := range names {
			names[i] = "tenant-" + strconv.Itoa(i)
			set, err := p.Set(names[i], "default")
			if err != nil {
				return nil, err
			}
			sets[i] = set
		}
		return func(caller, n int) bucket.Ask {
			i := (caller + n*31) % tenants // another tenant each time, and all equally often
			a := bucket.Ask{Set: sets[i], Tenant: names[i]}
			if keys {
				a.ID = fmt.Sprintf("adm_%08d%012d", caller, n)
				a.Key = fmt.Sprintf("%012d%020d", caller, n)
				a.Fingerprint, a.KeyTTL = "0123456789abcdef", time.Minute
			}
			return a
		}, nil
	}
}

// autoPipeline sends the very script call of one of our asks for every decision, and leaves it to go-redis to put the
// calls of many callers into pipelines.
func autoPipeline(doc admission.DependencyDocument) contender {
	return contender{name: "one call each, AutoPipeline", open: func(ctx context.Context, addr string) (askFunc, func() error, error) {
		client := redis.NewClient(&redis.Options{Addr: addr, PoolSize: peerPool})
		fail := func(err error) (askFunc, func() error, error) { return nil, nil, errors.Join(err, client.Close()) }
		sha, keys, args, err := capture(ctx, addr, doc)
		if err != nil {
			return fail(err)
		}
		pipe, err := client.AutoPipeline()
		if err != nil {
			return fail(err)
		}
		ask := func(ctx context.Context, _, _ int) (bool, error) {
			vals, err := pipe.EvalSha(ctx, sha, keys, args...).Slice()
			if err != nil {
				return false, err
			}
			if len(vals) < 4 || vals[0] != "ok" {
				return false, fmt.Errorf("the script replied %v", vals)
			}
			return vals[3] == int64(0), nil
		}
		return ask, func() error { return errors.Join(pipe.Close(), client.Close()) }, nil
	}}
}

// capture asks once through a Limiter and returns the script call it made.
func capture(ctx context.Context, addr string, doc admission.DependencyDocument) (sha string, keys []string, args []any, err error) {
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer func() { err = errors.Join(err, client.Close()) }()
	policy, err := install(ctx, client, doc)
	if err != nil {
		return "", nil, nil, err
	}
	next, err := plainAsk(policy)
	if err != nil {
		return "", nil, nil, err
	}
	tap := &tap{}
	client.AddHook(tap)
	limiter := bucket.NewStore(client, bucket.StoreOptions{}).Limiter(dependency)
	defer limiter.Close()
	if _, err := limiter.Do(ctx, next(0, 0), patience); err != nil {
		return "", nil, nil, err
	}
	tap.mu.Lock()
	defer tap.mu.Unlock()
	if len(tap.line) < 4 {
		return "", nil, nil, errors.New("no script call was seen")
	}
	sha, _ = tap.line[1].(string)
	n, _ := tap.line[2].(int)
	for _, k := range tap.line[3 : 3+n] {
		key, _ := k.(string)
		keys = append(keys, key)
	}
	return sha, keys, append([]any(nil), tap.line[3+n:]...), nil
}

// tap remembers the EVALSHA that passed.
type tap struct {
	mu   sync.Mutex
	line []any
}

func (t *tap) DialHook(next redis.DialHook) redis.DialHook { return next }

func (t *tap) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (t *tap) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "evalsha" {
			t.mu.Lock()
			t.line = append([]any(nil), cmd.Args()...)
			t.mu.Unlock()
		}
		return next(ctx, cmd)
	}
}
