package main

import (
	"context"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/sluicehq/sluice/bucket"
)

// bareScript adds to a counter for each key of a batch, and looks for and leaves a record for each ask that has a key of its
// own: no more than a read and a write of each. What must be exact cannot do with less: it has no refill, no refusal, no time
// to come again, no clock that never steps back, no versions.
const bareScript = `
for i = 1, #KEYS do
  local used = tonumber(redis.call('HGET', KEYS[i], 'used') or '0')
  redis.call('HSET', KEYS[i], 'used', string.format('%.0f', used + ARGV[i]))
end
for i = #KEYS + 1, #ARGV do
  if not redis.call('GET', ARGV[i]) then
    redis.call('SET', ARGV[i], 'a', 'PX', 60000)
  end
end
return 'ok'
`

// bareAsk is an ask of a tenant, with a key or without.
type bareAsk struct{ tenant, key string }

// bare is the floor: our coalescer around bareScript. No way of deciding exactly, in calls of at most 128 asks of which one is
// under way, is faster on this machine than this.
func bare(tenants int, keys bool) contender {
	return contender{name: "floor: a bare read and write", open: func(_ context.Context, addr string) (askFunc, func() error, error) {
		client := redis.NewClient(&redis.Options{Addr: addr})
		script := bucket.NewScript("bare", bareScript)
		names := make([]string, tenants)
		for i := range names {
			names[i] = "sluice:{bench}:s:" + strconv.Itoa(i)
		}
		calls := bucket.NewCoalescer(bucket.CoalescerConfig[bareAsk, bool]{
			Lane: func(a bareAsk) string { return a.tenant },
			Exec: func(batch []bareAsk) ([]bool, error) {
				counts, order := make(map[string]int, len(batch)), make([]string, 0, len(batch))
				var records []any
				for _, a := range batch {
					if counts[a.tenant]++; counts[a.tenant] == 1 {
						order = append(order, a.tenant)
					}
					if a.key != "" {
						records = append(records, a.key)
					}
				}
				args := make([]any, 0, len(order)+len(records))
				for _, tenant := range order {
					args = append(args, counts[tenant])
				}
				if _, err := script.Run(context.Background(), client, order, append(args, records...)); err != nil {
					return nil, err
				}
				answers := make([]bool, len(batch))
				for i := range answers {
					answers[i] = true
				}
				return answers, nil
			},
		})
		ask := func(ctx context.Context, caller, n int) (bool, error) {
			a := bareAsk{tenant: names[(caller+n*31)%tenants]}
			if keys {
				a.key = "sluice:{bench}:idem:" + strconv.Itoa(caller) + "-" + strconv.Itoa(n)
			}
			return calls.Do(ctx, a, patience)
		}
		return ask, func() error { calls.Close(); return client.Close() }, nil
	}}
}
