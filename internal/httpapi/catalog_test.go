package httpapi_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluicehq/sluice/admission"
	"github.com/sluicehq/sluice/bucket"
)

func TestDependencies(t *testing.T) {
	t.Parallel()
	a := newAPI(t, 0)
	got := a.do(request("GET", "/v1/dependencies", ""))
	require.Equal(t, 200, got.status)
	require.JSONEq(t, `{"dependencies":[{"name":"shop","policy_version":7,"owners":["team"]},{"name":"empty","policy_version":1,"owners":[]}]}`, got.body)
}

func TestDependency(t *testing.T) {
	t.Parallel()
	a := newAPI(t, 0)
	require.Equal(t, "unknown_dependency", problemOf(t, a.do(request("GET", "/v1/dependencies/shop", ""))).Reason)
	require.Equal(t, 404, a.do(request("GET", "/v1/dependencies/%7D", "")).status)

	newYork, err := time.LoadLocation("America/New_York")
	require.NoError(t, err)
	shop := rate(40, 1, 500_000)
	shop.Per, shop.Debt, shop.OnExceeded, shop.Classes = bucket.PerDependency, true, bucket.Wait, []string{"bulk"}
	limits := []*bucket.Limit{
		shop,
		{Name: "in-flight", Kind: bucket.Concurrency, Size: 8, Hold: 30 * time.Second, Shadow: true},
		{Name: "daily", Kind: bucket.Quota, Size: 9, OnExceeded: bucket.Reject, Every: bucket.Calendar{Every: bucket.Day, Location: newYork, StartsAt: 9 * time.Hour}},
		{Name: "weekly", Kind: bucket.Quota, Per: bucket.PerTenant, Size: 9, Every: bucket.Calendar{Every: bucket.Week, Weekday: time.Monday}},
		{Name: "monthly", Kind: bucket.Quota, Per: bucket.PerTenant, Size: 9, Every: bucket.Calendar{Every: bucket.Month}},
		{Name: "slide", Kind: bucket.SlidingLog, Per: bucket.PerClass, Unit: "points", Size: 9, Window: 90 * time.Second},
	}
	a.fake.overview = func(string) (admission.Overview, error) {
		return admission.Overview{
			Summary: admission.Summary{Name: "shop", Description: "d", Version: 7}, Now: now, Classes: []string{"bulk", "default"}, StoreMode: "redis", Limits: limits,
			States: []admission.LimitState{
				{Limit: shop, Remaining: 0, Reset: 1500 * time.Microsecond}, {Limit: limits[1], Remaining: 7}, {Limit: limits[2], Remaining: 3, Reset: time.Hour},
			},
		}, nil
	}
	got := a.do(request("GET", "/v1/dependencies/shop", ""))
	require.Equal(t, 200, got.status)
	require.JSONEq(t, `{"name":"shop","description":"d","policy_version":7,"owners":[],"store_mode":"redis","classes":["bulk","default"],"limits":[
		{"name":"rate","kind":"token_bucket","per":"dependency","classes":["bulk"],"unit":"requests","limit":40,"refill":"2/s","oversize":"debt","on_exceeded":"queue","remaining":0,"full_in_ms":2},
		{"name":"in-flight","kind":"concurrency","per":"dependency","limit":8,"max_hold":"30s","shadow":true,"remaining":7},
		{"name":"daily","kind":"quota","per":"dependency","unit":"requests","limit":9,"every":"day","time_zone":"America/New_York","starts_at":"09:00:00","on_exceeded":"reject","remaining":3,"window_ends_at":"2026-12-01T12:00:00.250Z"},
		{"name":"weekly","kind":"quota","per":"tenant","unit":"requests","limit":9,"every":"week","time_zone":"UTC","weekday":"monday"},
		{"name":"monthly","kind":"quota","per":"tenant","unit":"requests","limit":9,"every":"month","time_zone":"UTC","day_of_month":1},
		{"name":"slide","kind":"sliding_log","per":"class","unit":"points","limit":9,"window":"1m30s"}]}`, got.body)
	a.fake.overview = func(string) (admission.Overview, error) { return admission.Overview{}, bucket.ErrUnavailable }
	require.Equal(t, 503, a.do(request("GET", "/v1/dependencies/shop", "")).status)
}
