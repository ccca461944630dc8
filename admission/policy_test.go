package admission_test

import (
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluicehq/sluice/admission"
	"github.com/sluicehq/sluice/bucket"
)

const shopify = `{
  "description": "Admin API", "owners": ["team-commerce"], "consumers": ["team-search"],
  "limits": [
    {"name": "rate", "kind": "token_bucket", "per": "tenant", "capacity": 40, "refill": "2/s", "unit": "points"},
    {"name": "bulk", "kind": "token_bucket", "classes": ["bulk"], "capacity": 3, "refill": "1/min", "initial": 2, "oversize": "debt"},
    {"name": "in-flight", "kind": "concurrency", "max": 10, "max_hold": "30s", "shadow": true},
    {"name": "daily", "kind": "quota", "limit": 10000, "every": "day", "time_zone": "America/New_York", "starts_at": "08:30"},
    {"name": "weekly", "kind": "quota", "per": "tenant", "limit": 10000, "every": "week"},
    {"name": "smooth", "kind": "sliding_window", "limit": 100, "window": "1m", "per": "class"},
    {"name": "exact", "kind": "sliding_log", "limit": 1000, "window": "24h"}],
  "classes": {"bulk": {}, "interactive": {}},
  "plans": {"plus": {"limits": {"rate": {"capacity": 80, "refill": "4/s"}}}, "empty": {"weight": 2}},
  "tenants": {
    "acme": {"plan": "plus", "limits": {"daily": {"limit": 50000}, "rate": {"capacity": 90}}},
    "brand": {"plan": "plus"}, "copy": {"plan": "plus"}, "plain": {"plan": "empty"},
    "berlin": {"limits": {"weekly": {"time_zone": "Europe/Berlin", "weekday": "friday"}, "bulk": {"capacity": 1}}}},
  "store": {"timeout": "25ms", "on_failure": "open"}
}`

func compile(tb testing.TB, text string) *admission.Policy {
	tb.Helper()
	p, err := admission.Compile("shopify", 7, doc(tb, text))
	require.NoError(tb, err)
	return p
}

func TestCompile(t *testing.T) {
	t.Parallel()
	p := compile(t, shopify)
	require.Equal(t, int64(7), p.Version())
	require.Equal(t, "Admin API", p.Description())
	require.Equal(t, []string{"team-commerce"}, p.Owners())
	require.Equal(t, []string{"bulk", "default", "interactive"}, p.Classes())
	require.Equal(t, []string{"points", "requests"}, p.Units())
	require.Equal(t, 25*time.Millisecond, p.StoreTimeout())
	require.Equal(t, admission.FailOpen, p.OnFailure())
	require.Equal(t, 10*time.Minute, p.SettleWithin())
	require.Equal(t, 10*time.Minute, p.IdempotencyTTL())
	ny, err := time.LoadLocation("America/New_York")
	require.NoError(t, err)
	require.Equal(t, []*bucket.Limit{
		{Name: "rate", Kind: bucket.TokenBucket, Per: bucket.PerTenant, Unit: "points", OnExceeded: bucket.Wait, Size: 40, Initial: 40, Refill: bucket.Rate{N: 1, P: 500_000}},
		{Name: "bulk", Kind: bucket.TokenBucket, Per: bucket.PerDependency, Classes: []string{"bulk"}, Unit: "requests", OnExceeded: bucket.Wait, Size: 3, Initial: 2, Debt: true, Refill: bucket.Rate{N: 1, P: 60_000_000}},
		{Name: "in-flight", Kind: bucket.Concurrency, Per: bucket.PerDependency, OnExceeded: bucket.Wait, Size: 10, Hold: 30 * time.Second, Shadow: true},
		{Name: "daily", Kind: bucket.Quota, Per: bucket.PerDependency, Unit: "requests", OnExceeded: bucket.Reject, Size: 10000, Every: bucket.Calendar{Every: bucket.Day, Location: ny, StartsAt: 8*time.Hour + 30*time.Minute}},
		{Name: "weekly", Kind: bucket.Quota, Per: bucket.PerTenant, Unit: "requests", OnExceeded: bucket.Reject, Size: 10000, Every: bucket.Calendar{Every: bucket.Week, Location: time.UTC, Weekday: time.Monday}},
		{Name: "smooth", Kind: bucket.SlidingWindow, Per: bucket.PerClass, Unit: "requests", OnExceeded: bucket.Reject, Size: 100, Window: time.Minute},
		{Name: "exact", Kind: bucket.SlidingLog, Per: bucket.PerDependency, Unit: "requests", OnExceeded: bucket.Reject, Size: 1000, Window: 24 * time.Hour},
	}, p.Limits())
}

func limitOf(t *testing.T, p *admission.Policy, tenant, class, name string) *bucket.Limit {
	t.Helper()
	s, err := p.Set(tenant, class)
	require.NoError(t, err)
	for _, l := range s.Limits() {
		if l.Name == name {
			return l
		}
	}
	return nil
}

func TestSetByTenantAndClass(t *testing.T) {
	t.Parallel()
	p := compile(t, shopify)
	require.Equal(t, int64(40), limitOf(t, p, "nobody", "", "rate").Size)
	require.Equal(t, int64(80), limitOf(t, p, "brand", "", "rate").Size)
	require.Equal(t, bucket.Rate{N: 1, P: 250_000}, limitOf(t, p, "brand", "", "rate").Refill)
	require.Equal(t, int64(90), limitOf(t, p, "acme", "", "rate").Size, "a tenant's own goes before its plan")
	require.Equal(t, bucket.Rate{N: 1, P: 250_000}, limitOf(t, p, "acme", "", "rate").Refill, "field by field")
	require.Equal(t, int64(50000), limitOf(t, p, "acme", "", "daily").Size)
	require.Equal(t, time.Friday, limitOf(t, p, "berlin", "", "weekly").Every.Weekday)
	require.Equal(t, "Europe/Berlin", limitOf(t, p, "berlin", "", "weekly").Every.Location.String())
	require.Nil(t, limitOf(t, p, "", "", "bulk"), "confined to another class")
	require.Equal(t, int64(3), limitOf(t, p, "", "bulk", "bulk").Size)
	require.Equal(t, int64(1), limitOf(t, p, "berlin", "bulk", "bulk").Initial, "no more than its capacity")
	require.Equal(t, int64(40), p.Limits()[0].Size, "the policy's own are untouched")

	_, err := p.Set("", "express")
	var field *admission.FieldError
	require.ErrorAs(t, err, &field)
	require.Equal(t, "class: must be one of bulk, default, interactive", err.Error())
}

func TestSetsAreShared(t *testing.T) {
	t.Parallel()
	p := compile(t, shopify)
	set := func(tenant, class string) *bucket.Set {
		s, err := p.Set(tenant, class)
		require.NoError(t, err)
		require.Equal(t, int64(7), s.Version())
		return s
	}
	require.Same(t, set("a", ""), set("b", "default"))
	require.Same(t, set("a", ""), set("plain", ""), "a plan that changes no limit")
	require.Same(t, set("brand", "bulk"), set("copy", "bulk"))
	require.NotSame(t, set("brand", "bulk"), set("brand", ""))
	require.NotSame(t, set("brand", ""), set("a", ""))
	require.NotSame(t, set("brand", ""), set("acme", ""))

	plain := compile(t, `{"limits": [{"name": "rate", "kind": "token_bucket", "capacity": 1, "refill": "1/s"}], "classes": {"bulk": {}}}`)
	a, err := plain.Set("", "bulk")
	require.NoError(t, err)
	b, err := plain.Set("x", "")
	require.NoError(t, err)
	require.Same(t, a, b, "where no limit looks at the class all classes share a batch")

	var wg sync.WaitGroup
	fresh := compile(t, shopify)
	found := make([]*bucket.Set, 64)
	for i := range found {
		wg.Go(func() {
			s, err := fresh.Set("acme", "bulk")
			if err != nil {
				t.Error(err)
			}
			found[i] = s
		})
	}
	wg.Wait()
	for _, s := range found {
		require.Same(t, found[0], s)
	}
}

func TestTenantsWithoutOverridesCostNothing(t *testing.T) { //nolint:paralleltest // measures the heap
	p := compile(t, shopify)
	_, err := p.Set("", "bulk")
	require.NoError(t, err)
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	for i := range 100_000 {
		_, err := p.Set(fmt.Sprintf("tenant-%d", i), "bulk")
		require.NoError(t, err)
	}
	require.Less(t, heap(), before+1<<20)
	runtime.KeepAlive(p)
}

func TestNotInForce(t *testing.T) {
	t.Parallel()
	require.Empty(t, compile(t, `{"unlimited": true, "classes": {"bulk": {}}, "store": {"timeout": "1s"}}`).NotInForce())
	require.Equal(t, []string{
		"queue", "classes: tier", "classes: weight", "plans: weight", "tenants: weight", "limits: on_exceeded: queue",
		"store: on_failure: local", "store: min_replicas", "lease", "partner", "jobs", "retention",
	}, compile(t, `{
		"limits": [{"name": "r", "kind": "token_bucket", "capacity": 1, "refill": "1/s", "on_exceeded": "queue"}],
		"queue": {}, "classes": {"bulk": {"tier": 2, "weight": 1}}, "plans": {"p": {"weight": 2}}, "tenants": {"t": {"weight": 3}},
		"store": {"on_failure": "local", "min_replicas": 2}, "lease": {}, "partner": {}, "jobs": {}, "retention": {}}`).NotInForce())
	require.Equal(t, []string{"managed_by: review", "callbacks"},
		(&admission.Document{ManagedBy: "review", Callbacks: &admission.CallbacksDocument{}}).NotInForce())
}

func BenchmarkSet(b *testing.B) {
	p := compile(b, shopify)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := p.Set("acme", "bulk"); err != nil {
			b.Fatal(err)
		}
	}
}
