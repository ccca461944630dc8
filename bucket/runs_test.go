package bucket

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/sluicehq/sluice/internal/redistest"
)

// drawRunLimits draws limits that lua/short.lua decides over.
func drawRunLimits(t *rapid.T) []*Limit {
	limits := make([]*Limit, rapid.IntRange(1, 3).Draw(t, "limits"))
	for i := range limits {
		l := &Limit{
			Name: "l" + strconv.Itoa(i), Kind: TokenBucket, Unit: rapid.SampledFrom([]string{Requests, "points"}).Draw(t, "unit"),
			Per:        rapid.SampledFrom([]Per{PerDependency, PerTenant, PerClass}).Draw(t, "per"),
			OnExceeded: Wait, Size: rapid.Int64Range(1, 30).Draw(t, "size"),
		}
		if rapid.IntRange(0, 2).Draw(t, "quota") == 0 {
			l.Kind, l.OnExceeded = Quota, Reject
			l.Every = Calendar{Every: rapid.SampledFrom([]Period{Minute, Hour, Day}).Draw(t, "every")}
		} else {
			l.Refill = rate(rapid.SampledFrom([]string{"1/s", "3/s", "1/min", "1000/s", "5/1.3s"}).Draw(t, "refill"))
			l.Initial = rapid.Int64Range(0, l.Size).Draw(t, "initial")
			l.Debt = rapid.IntRange(0, 4).Draw(t, "debt") == 0
		}
		limits[i] = l
	}
	return limits
}

// TestRunsAgree: what the script decides the short way, above all runs, which it decides at once, is to the microsecond
// what the model decides ask by ask.
func TestRunsAgree(t *testing.T) {
	t.Parallel()
	backends(t, func(t *testing.T, client redis.UniversalClient) {
		name, worlds := redistest.Name(t), 0
		rapid.Check(t, func(rt *rapid.T) {
			worlds++
			w := newWorld(rt, client, name+"-"+strconv.Itoa(worlds), drawRunLimits(rt)...)
			defer w.close()
			for range rapid.IntRange(1, 12).Draw(rt, "steps") {
				switch rapid.IntRange(0, 7).Draw(rt, "step") {
				case 0:
					w.move(-rapid.Int64Range(0, 7_200_000_000).Draw(rt, "back"))
				case 1:
					w.move(rapid.Int64Range(0, 100_000_000).Draw(rt, "ahead"))
				case 2, 3:
					w.move(rapid.Int64Range(0, 3_000_000).Draw(rt, "tick"))
				}
				var batch []*call
				for range rapid.IntRange(1, 4).Draw(rt, "runs") {
					set := w.set(rapid.SampledFrom([]string{"default", "bulk"}).Draw(rt, "class"))
					a := Ask{Set: set, Tenant: rapid.SampledFrom([]string{"", "a", "b"}).Draw(rt, "tenant")}
					if rapid.Bool().Draw(rt, "costs") {
						for range set.units {
							a.Costs = append(a.Costs, rapid.Int64Range(0, 4).Draw(rt, "cost"))
						}
					}
					keyed := rapid.IntRange(0, 2).Draw(rt, "keyed") == 0
					for range rapid.IntRange(1, 12).Draw(rt, "asks") {
						a.ID = w.id()
						if keyed {
							a.Key, a.KeyTTL = "k"+strconv.Itoa(rapid.IntRange(0, 9).Draw(rt, "key")), 100*time.Second
							a.Fingerprint = "f" + strconv.Itoa(rapid.IntRange(0, 1).Draw(rt, "fingerprint"))
						}
						batch = append(batch, callOf(a))
					}
				}
				w.both(batch...)
			}
		})
	})
}

// TestRunsAreShort: a run of any length is one answer of the script, so that the test above is about runs.
func TestRunsAreShort(t *testing.T) {
	t.Parallel()
	backends(t, func(t *testing.T, client redis.UniversalClient) {
		w := newWorld(t, client, redistest.Name(t), tokenLimit(100, "10/s"))
		defer w.close()
		reply := func(a Ask) []any {
			batch := make([]*call, 120)
			for i := range batch {
				batch[i] = callOf(a)
			}
			keys, args := newEncoder(w.limiter.prefix).encode(w.store.Now(), itoa(w.version), batch, "", "")
			raw, err := w.store.decide.Run(context.Background(), client, keys, args)
			require.NoError(t, err)
			vals, ok := raw.([]any)
			require.True(t, ok)
			return vals[3:]
		}
		a := Ask{Set: w.set("default")}
		// 120 asks, 100 admitted; used 0; 20 refused from 100 ms on, each 100 ms later.
		require.Equal(t, []any{int64(8), int64(120), int64(100), int64(0), int64(0), int64(100_000), int64(100_000), int64(100_000), int64(0), int64(100_000)}, reply(a))
		// A promise to a later slot is a matter of the general way.
		w.move(60_000_000)
		w.both(callOf(Ask{Set: a.Set, Costs: []int64{100}}), callOf(Ask{Set: a.Set, Verb: Reserve, MaxWait: MaxAhead, ID: "adm_1"}))
		require.NotEqual(t, int64(8), reply(a)[0])
	})
}

// TestRunsKeepAlive: a tenant's hash outlives what it says, although most writes leave its expiry alone.
func TestRunsKeepAlive(t *testing.T) {
	t.Parallel()
	backends(t, func(t *testing.T, client redis.UniversalClient) {
		ctx := context.Background()
		fast, slow := tokenLimit(10, "10/s"), tokenLimit(1000, "1/s")
		fast.Name, slow.Name, fast.Per, slow.Per = "fast", "slow", PerTenant, PerTenant
		fast.Classes, slow.Classes = []string{"fast"}, []string{"slow"}
		w := newWorld(t, client, redistest.Name(t), fast, slow)
		defer w.close()
		left := func(class string, cost int64) time.Duration {
			a := w.ask(Ask{Set: w.set(class), Tenant: "acme", Costs: []int64{cost}})
			require.Equal(t, Admitted, a.Outcome)
			ttl, err := client.PTTL(ctx, tenantKeyOf(Prefix(w.name), "acme")).Result()
			require.NoError(t, err)
			return ttl
		}
		shorten := func() {
			require.NoError(t, client.PExpire(ctx, tenantKeyOf(Prefix(w.name), "acme"), 130*time.Second).Err())
		}
		require.Greater(t, left("fast", 1), 3*time.Minute-5*time.Second, "the first write")
		shorten()
		w.move(59_000_000)
		require.LessOrEqual(t, left("fast", 1), 130*time.Second, "a write in the same minute")
		w.move(1_000_000)
		require.Greater(t, left("fast", 1), 3*time.Minute-5*time.Second, "a write in the next minute")
		shorten()
		require.Greater(t, left("slow", 1), 1000*time.Second, "the first write of another limit")
		shorten()
		require.LessOrEqual(t, left("slow", 58), 130*time.Second, "59 s until it is full")
		require.Greater(t, left("slow", 100), 1000*time.Second, "159 s until it is full")
	})
}
