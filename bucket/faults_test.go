//go:build unix

package bucket

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluicehq/sluice/internal/redistest"
)

const plantCapacity = 100_000

// plant is one dependency on a server of its own, with a bucket that does not refill while a test runs, and a limiter of
// its own that talks through a proxy.
type plant struct {
	t       *testing.T
	server  *redistest.Server
	proxy   *redistest.Proxy
	past    *redis.Client // around the proxy
	store   *Store
	limiter *Limiter
	look    *Limiter // around the proxy
	name    string
	set     *Set
	ids     int
}

func newPlant(t *testing.T, limits ...*Limit) *plant {
	t.Helper()
	p := &plant{t: t, server: redistest.Start(t), name: redistest.Name(t)}
	p.proxy = redistest.NewProxy(t, p.server.Addr())
	p.past = p.server.Client(t)
	p.store = NewStore(p.proxy.Client(t), StoreOptions{})
	p.set = NewSet(1, append([]*Limit{tokenLimit(plantCapacity, "1/d")}, limits...), "default")
	p.install(p.name)
	p.limiter, p.look = p.store.Limiter(p.name), NewStore(p.past, StoreOptions{}).Limiter(p.name)
	t.Cleanup(p.limiter.Close)
	t.Cleanup(p.look.Close)
	return p
}

func (p *plant) install(name string) {
	fields := []any{"v", 1}
	for _, l := range p.set.limits {
		if l.Kind == TokenBucket {
			fields = append(fields, "b:"+l.Identity(), fmt.Sprintf("%d %d", epoch-86_400_000_000_000, l.Size))
		}
	}
	require.NoError(p.t, p.past.HSet(context.Background(), MetaKey(name), fields...).Err())
	require.NoError(p.t, p.past.HSet(context.Background(), StateKey(name), "installed", 1).Err())
}

// taken is how much of the bucket is gone.
func (p *plant) taken() int64 {
	ans, err := p.look.Do(context.Background(), Ask{Set: p.set, Verb: View}, 0)
	require.NoError(p.t, err)
	return plantCapacity - ans.Limits[0].Remaining
}

func (p *plant) ask(verb Verb) Ask {
	p.ids++
	return Ask{Set: p.set, Verb: verb, ID: "adm_" + strconv.Itoa(p.ids), Class: "default"}
}

func (p *plant) keyed() Ask {
	a := p.ask(Take)
	a.Key, a.Fingerprint, a.KeyTTL = "key"+a.ID, "f", time.Minute
	return a
}

func (p *plant) grant() Ask {
	a := p.ask(Take)
	a.SettleWithin = time.Minute
	return a
}

func (p *plant) reserve() Ask {
	a := p.ask(Reserve)
	a.MaxWait = time.Minute
	return a
}

func (p *plant) do(a Ask) (Answer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	return p.limiter.Do(ctx, a, 0)
}

func (p *plant) must(a Ask) Answer {
	ans, err := p.do(a)
	require.NoError(p.t, err)
	require.Equal(p.t, Admitted, ans.Outcome)
	return ans
}

// TestLostReplyTakesOnce: the reply to a plain ask is lost, and so one token is, never two; by digest and by source.
func TestLostReplyTakesOnce(t *testing.T) {
	t.Parallel()
	p := newPlant(t)
	for i := range int64(20) {
		if i%5 == 0 {
			require.NoError(t, p.past.ScriptFlush(t.Context()).Err())
			p.proxy.DropReplies(2) // the refusal of the digest, then what the source did
			_, err := p.do(p.ask(Take))
			require.ErrorIs(t, err, ErrUnavailable)
			require.Equal(t, i, p.taken(), "the digest was not known: nothing happened")
			p.proxy.DropReplies(0)
			require.NoError(t, p.past.ScriptFlush(t.Context()).Err())
			require.Equal(t, i, p.taken())
		}
		p.proxy.DropReplies(1)
		_, err := p.do(p.ask(Take))
		require.ErrorIs(t, err, ErrUnavailable)
		require.NotErrorIs(t, err, ErrNotRun)
		require.Equal(t, i+1, p.taken())
	}
	require.Equal(t, 24, p.proxy.Dropped())
	p.must(p.ask(Take))
	require.Equal(t, int64(21), p.taken())
}

// TestLostReplyIsRepeated: a batch that leaves something behind is repeated once its reply is lost; it does nothing the
// second time, and its callers get the answer.
func TestLostReplyIsRepeated(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]func(p *plant) (a Ask, took int64){
		"keyed":          func(p *plant) (Ask, int64) { return p.keyed(), 1 },
		"to be settled":  func(p *plant) (Ask, int64) { return p.grant(), 1 },
		"reserved":       func(p *plant) (Ask, int64) { return p.reserve(), 1 },
		"with a minimum": func(p *plant) (Ask, int64) { a := p.grant(); a.Costs, a.Min = []int64{5}, []int64{2}; return a, 5 },
		"settled": func(p *plant) (Ask, int64) {
			a := p.grant()
			a.Costs = []int64{7}
			p.must(a)
			return Ask{Set: p.set, Verb: Settle, ID: a.ID, Costs: []int64{3}}, 3
		},
		"undone": func(p *plant) (Ask, int64) {
			a := p.ask(Take)
			return Ask{Set: p.set, Verb: Undo, ID: a.ID, Costs: []int64{1}, slot: p.must(a).slot}, 0
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlant(t)
			for i := range int64(6) {
				a, took := row(p)
				p.proxy.DropReplies(1)
				ans := p.must(a)
				require.False(t, ans.Replayed, "the reply is that of the first time")
				require.Equal(t, (i+1)*took, p.taken())
			}
			require.Equal(t, 6, p.proxy.Dropped())

			a, took := row(p)
			p.proxy.DropReplies(2)
			_, err := p.do(a)
			require.ErrorIs(t, err, ErrUnavailable, "twice is enough")
			require.Equal(t, 7*took, p.taken())
		})
	}
}

// TestLostReplyOfAKey: whoever asks again with the key gets the first answer, whatever was lost.
func TestLostReplyOfAKey(t *testing.T) {
	t.Parallel()
	p := newPlant(t)
	p.must(p.ask(Take)) // the script is known from now on
	a := p.keyed()
	p.proxy.DropReplies(2)
	_, err := p.do(a)
	require.ErrorIs(t, err, ErrUnavailable)
	first := a.ID
	a.ID = "adm_another"
	ans := p.must(a)
	require.True(t, ans.Replayed)
	require.Equal(t, first, ans.ID)
	require.Equal(t, int64(2), p.taken())
}

// TestLostConnectionsUnderLoad: replies are lost and connections reset while many ask; no ask takes more than a token, and
// each that was told so has it. Each ask is of a tenant with a bucket of its own, so that none makes up for another.
func TestLostConnectionsUnderLoad(t *testing.T) {
	t.Parallel()
	const callers, each = 16, 40
	own := &Limit{Name: "own", Kind: TokenBucket, Per: PerTenant, Unit: Requests, Size: 10, Initial: 10, Refill: rate("1/d")}
	p := newPlant(t, own)
	var mu sync.Mutex
	told, unsure := map[string]bool{}, map[string]bool{}
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			for i := range each {
				a := Ask{Set: p.set, ID: fmt.Sprintf("adm_%d_%d", c, i)}
				a.Tenant = a.ID
				switch c % 4 {
				case 0:
					a.SettleWithin = time.Minute
				case 1, 2:
					a.Key, a.Fingerprint, a.KeyTTL = a.ID, "f", time.Minute
				}
				switch i % 10 {
				case 3:
					p.proxy.DropReplies(1)
				case 7:
					p.proxy.Cut()
				}
				ans, err := p.limiter.Do(context.Background(), a, 0)
				mu.Lock()
				if err == nil && ans.Outcome == Admitted {
					told[a.Tenant] = true
				} else {
					unsure[a.Tenant] = true
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	require.Len(t, told, callers*each-len(unsure))
	require.NotEmpty(t, told)
	lost := 0
	for c := range callers {
		for i := range each {
			tenant := fmt.Sprintf("adm_%d_%d", c, i)
			view, err := p.look.Do(context.Background(), Ask{Set: p.set, Tenant: tenant, Verb: View}, 0)
			require.NoError(t, err)
			taken := 10 - view.Limits[1].Remaining
			if told[tenant] {
				require.Equal(t, int64(1), taken, tenant)
			} else {
				require.LessOrEqual(t, taken, int64(1), tenant)
				lost += int(taken)
			}
		}
	}
	require.Equal(t, int64(len(told)+lost), p.taken())
}

// TestCallersThatLeave: what was taken for a caller who left after the batch was sealed is given back by the next call,
// whether its context ended or its time; not so where it stands, or can be had again by its key.
func TestCallersThatLeave(t *testing.T) {
	t.Parallel()
	concurrency := &Limit{Name: "c", Kind: Concurrency, Per: PerDependency, Size: 10, Hold: time.Hour}
	for name, row := range map[string]struct {
		ask   func(p *plant) Ask
		stays int64
	}{
		"plain":   {func(p *plant) Ask { return p.ask(Take) }, 0},
		"grant":   {(*plant).grant, 0},
		"reserve": {(*plant).reserve, 0},
		"stands":  {func(p *plant) Ask { a := p.ask(Take); a.Stands = true; return a }, 1},
		"keyed":   {(*plant).keyed, 1},
	} {
		for _, by := range []string{"context", "time"} {
			t.Run(name+" by "+by, func(t *testing.T) {
				t.Parallel()
				p := newPlant(t, concurrency)
				calls, sent, release := 0, make(chan struct{}, 8), make(chan struct{})
				exec := p.limiter.calls.cfg.Exec
				p.limiter.calls.cfg.Exec = func(batch []*call) ([]reply, error) {
					replies, err := exec(batch)
					calls++
					sent <- struct{}{}
					<-release // the reply is on its way
					return replies, err
				}
				a, within := row.ask(p), time.Duration(0)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if by == "time" {
					within = 20 * time.Millisecond
				}
				ended := make(chan error, 1)
				go func() {
					_, err := p.limiter.Do(ctx, a, within)
					ended <- err
				}()
				if by == "time" {
					require.ErrorIs(t, <-ended, ErrTimeout)
				} else {
					<-sent
					require.Equal(t, int64(1), p.taken())
					cancel()
					require.ErrorIs(t, <-ended, context.Canceled)
				}
				close(release)
				_, err := p.do(Ask{Set: p.set, Verb: View}) // what was taken goes back with it
				require.NoError(t, err)
				undone := calls == 2
				view, err := p.do(Ask{Set: p.set, Verb: View})
				require.NoError(t, err)
				if undone { // on a busy machine the time may pass before the batch is sealed; then nothing was asked
					require.Equal(t, row.stays, plantCapacity-view.Limits[0].Remaining)
					require.Equal(t, 10-row.stays, view.Limits[1].Remaining, "the grant ends with it")
				} else {
					require.Equal(t, "time", by)
					require.Zero(t, p.taken())
				}
				held, err := p.past.Exists(t.Context(), Prefix(p.name)+"g:"+a.ID).Result()
				require.NoError(t, err)
				require.LessOrEqual(t, held, row.stays)
			})
		}
	}
}

// TestFlushedScripts: a script cache that is flushed all the time is not noticed.
func TestFlushedScripts(t *testing.T) {
	t.Parallel()
	p := newPlant(t)
	ctx, stop := context.WithCancel(t.Context())
	var flusher sync.WaitGroup
	defer flusher.Wait()
	defer stop()
	flusher.Go(func() {
		for ctx.Err() == nil {
			_ = p.past.ScriptFlush(ctx).Err()
		}
	})
	took := int64(0)
	for p.store.Loads() < 10 || took < 100 {
		a := p.ask(Take)
		if took%2 == 0 {
			a = p.keyed()
		}
		p.must(a)
		took++
	}
	require.Equal(t, took, p.taken())
}
