package admission_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/sluicehq/sluice/admission"
	"github.com/sluicehq/sluice/bucket"
)

const (
	tokens = `{"name":"rate","kind":"token_bucket","capacity":5,"refill":"1/s"`
	daily  = `{"name":"daily","kind":"quota","limit":5,"every":"day"`
)

// TestValidate: each document has one mistake, found at the place and told with what would be right.
func TestValidate(t *testing.T) {
	t.Parallel()
	limit := func(text string) string { return `{"limits":[` + text + `]}` }
	with := func(block string) string { return `{"limits":[` + tokens + `}],` + block + `}` }
	perTenant := func(override string) string {
		return `{"limits":[` + tokens + `,"per":"tenant"},` + daily + `}],"tenants":{"acme":{"limits":` + override + `}}}`
	}
	for name, tc := range map[string]struct{ text, path, message string }{
		"no limits":               {`{}`, "limits", "unlimited: true"},
		"both":                    {`{"unlimited":true,"limits":[` + tokens + `}]}`, "unlimited", "one or the other"},
		"name missing":            {limit(`{"kind":"concurrency","max":1}`), "limits[0].name", "is missing"},
		"name bad":                {limit(`{"name":"A b","kind":"concurrency","max":1}`), "limits[0].name", "a-z, 0-9"},
		"name twice":              {limit(tokens + `},` + tokens + `}`), "limits[1].name", "of its own"},
		"kind missing":            {limit(`{"name":"rate"}`), "limits[0].kind", "is missing; allowed are token_bucket"},
		"kind bad":                {limit(`{"name":"rate","kind":"gcra"}`), "limits[0].kind", `"gcra"; allowed are token_bucket, concurrency, quota`},
		"per bad":                 {limit(tokens + `,"per":"user"}`), "limits[0].per", "dependency, tenant, class, tenant_class"},
		"on_exceeded bad":         {limit(tokens + `,"on_exceeded":"drop"}`), "limits[0].on_exceeded", "queue, reject"},
		"unknown class":           {limit(tokens + `,"classes":["bulk"]}`), "limits[0].classes[0]", "use one of default"},
		"class twice":             {limit(tokens + `,"classes":["default","default"]}`), "limits[0].classes[1]", "second time"},
		"unit bad":                {limit(tokens + `,"unit":"LLM tokens"}`), "limits[0].unit", "a-z, 0-9"},
		"unit of concurrency":     {limit(`{"name":"c","kind":"concurrency","max":1,"unit":"requests"}`), "limits[0].unit", "counts asks"},
		"capacity missing":        {limit(`{"name":"r","kind":"token_bucket","refill":"1/s"}`), "limits[0].capacity", "needs capacity and refill"},
		"refill missing":          {limit(`{"name":"r","kind":"token_bucket","capacity":1}`), "limits[0].refill", "needs capacity and refill"},
		"capacity 0":              {limit(`{"name":"r","kind":"token_bucket","capacity":0,"refill":"1/s"}`), "limits[0].capacity", "from 1 to 4503599627370496"},
		"capacity x P":            {limit(`{"name":"r","kind":"token_bucket","capacity":4503599628,"refill":"1/s"}`), "limits[0].refill", "nearest rate that fits"},
		"initial":                 {limit(tokens + `,"initial":6}`), "limits[0].initial", "from 0 to the capacity, 5"},
		"initial negative":        {limit(tokens + `,"initial":-1}`), "limits[0].initial", "from 0 to the capacity, 5"},
		"oversize":                {limit(tokens + `,"oversize":"yes"}`), "limits[0].oversize", "allowed is debt"},
		"refill on a quota":       {limit(daily + `,"refill":"1/s"}`), "limits[0].refill", "does not belong to a quota, which takes limit, every"},
		"window on a bucket":      {limit(tokens + `,"window":"1s"}`), "limits[0].window", "make it a sliding_window or sliding_log"},
		"max on a log":            {limit(`{"name":"l","kind":"sliding_log","limit":1,"window":"1s","max":1}`), "limits[0].max", "make it a concurrency"},
		"hold too long":           {limit(`{"name":"c","kind":"concurrency","max":1,"max_hold":"25h"}`), "limits[0].max_hold", "from 10ms to 24h"},
		"hold too short":          {limit(`{"name":"c","kind":"concurrency","max":1,"max_hold":"1ms"}`), "limits[0].max_hold", "from 10ms to 24h"},
		"hold of half a ms":       {limit(`{"name":"c","kind":"concurrency","max":1,"max_hold":"10.5ms"}`), "limits[0].max_hold", "whole milliseconds"},
		"max too high":            {limit(`{"name":"c","kind":"concurrency","max":1099511627777}`), "limits[0].max", "from 1 to 1099511627776"},
		"every missing":           {limit(`{"name":"q","kind":"quota","limit":1}`), "limits[0].every", "is missing"},
		"every bad":               {limit(`{"name":"q","kind":"quota","limit":1,"every":"year"}`), "limits[0].every", "minute, hour, day, week, month"},
		"zone":                    {limit(daily + `,"time_zone":"Berlin"}`), "limits[0].time_zone", "Europe/Berlin"},
		"zone of the host":        {limit(daily + `,"time_zone":"Local"}`), "limits[0].time_zone", "from host to host"},
		"starts_at":               {limit(daily + `,"starts_at":"8:00"}`), "limits[0].starts_at", `"00:00" to "23:59"`},
		"starts_at 24":            {limit(daily + `,"starts_at":"24:00"}`), "limits[0].starts_at", `"00:00" to "23:59"`},
		"starts_at of an hour":    {limit(`{"name":"q","kind":"quota","limit":1,"every":"hour","starts_at":"08:00"}`), "limits[0].starts_at", "day, week or month only"},
		"weekday of a day":        {limit(daily + `,"weekday":"monday"}`), "limits[0].weekday", "week only"},
		"weekday bad":             {limit(`{"name":"q","kind":"quota","limit":1,"every":"week","weekday":"Mon"}`), "limits[0].weekday", "lower case"},
		"day_of_month of a day":   {limit(daily + `,"day_of_month":1}`), "limits[0].day_of_month", "month only"},
		"day_of_month 32":         {limit(`{"name":"q","kind":"quota","limit":1,"every":"month","day_of_month":32}`), "limits[0].day_of_month", "1 to 31"},
		"log too long":            {limit(`{"name":"l","kind":"sliding_log","limit":1001,"window":"1s"}`), "limits[0].limit", "from 1 to 1000"},
		"window missing":          {limit(`{"name":"l","kind":"sliding_log","limit":1}`), "limits[0].window", "is missing"},
		"window short":            {limit(`{"name":"w","kind":"sliding_window","limit":1,"window":"99ms"}`), "limits[0].window", "from 100ms to 8784h"},
		"window x limit":          {limit(`{"name":"w","kind":"sliding_window","limit":1000000000,"window":"8784h"}`), "limits[0].window", "lower the limit to at most 142418"},
		"class name":              {with(`"classes":{"Bulk":{}}`), "classes.Bulk", "a-z, 0-9"},
		"tier":                    {with(`"classes":{"bulk":{"tier":10}}`), "classes.bulk.tier", "from 0 to 9"},
		"weight":                  {with(`"classes":{"bulk":{"weight":0}}`), "classes.bulk.weight", "from 1 to 10000"},
		"plan name":               {with(`"plans":{"":{}}`), `plans[""]`, "a-z, 0-9"},
		"plan's limit":            {with(`"plans":{"plus":{"limits":{"rat":{"capacity":1}}}}`), "plans.plus.limits.rat", "it has rate"},
		"tenant's plan":           {with(`"plans":{"plus":{}},"tenants":{"a":{"plan":"pro"}}`), "tenants.a.plan", "there are plus"},
		"tenant's name":           {with(`"tenants":{"` + strings.Repeat("ü", 129) + `":{}}`), `tenants["` + strings.Repeat("ü", 129) + `"]`, "256 bytes"},
		"override of other kind":  {perTenant(`{"rate":{"limit":1}}`), "tenants.acme.limits.rate.limit", "can be changed: capacity, refill"},
		"override's value":        {perTenant(`{"rate":{"capacity":0}}`), "tenants.acme.limits.rate.capacity", "from 1"},
		"override's product":      {perTenant(`{"rate":{"capacity":4503599628}}`), "tenants.acme.limits.rate.capacity", "nearest rate that fits"},
		"override of nothing":     {perTenant(`{"rate":{}}`), "tenants.acme.limits.rate", "changes nothing"},
		"override of shared time": {perTenant(`{"daily":{"time_zone":"Europe/Berlin"}}`), "tenants.acme.limits.daily.time_zone", "one count per dependency"},
		"override of shared rate": {with(`"tenants":{"a":{"limits":{"rate":{"refill":"2/s"}}}}`), "tenants.a.limits.rate.refill", "per: tenant, or change only capacity"},
		"owner":                   {with(`"owners":["a",""]`), "owners[1]", "name of a team"},
		"owner twice":             {with(`"owners":["a","a"]`), "owners[1]", "second time"},
		"description":             {with(`"description":"` + strings.Repeat("x", 4097) + `"`), "description", "4096"},
		"timeout low":             {with(`"store":{"timeout":"500us"}`), "store.timeout", "from 1ms to 10s"},
		"timeout high":            {with(`"store":{"timeout":"11s"}`), "store.timeout", "from 1ms to 10s"},
		"on_failure":              {with(`"store":{"on_failure":"panic"}`), "store.on_failure", "local, open, closed"},
		"look_ahead":              {with(`"queue":{"look_ahead":"1001ms"}`), "queue.look_ahead", "from 0s to 1s"},
		"overflow":                {with(`"queue":{"overflow":"drop_lowest"}`), "queue.overflow", "reject_new, drop_oldest"},
		"per tenant":              {with(`"queue":{"max_length":5,"max_length_per_tenant":6}`), "queue.max_length_per_tenant", "more than max_length"},
		"headroom":                {with(`"queue":{"headroom":5}`), "queue.headroom", "0 to below the largest capacity, 5"},
		"share":                   {with(`"queue":{"lower_tier_share":0.6}`), "queue.lower_tier_share", "from 0 to 0.5"},
		"lease ttl":               {with(`"lease":{"ttl":"2m"}`), "lease.ttl", "from 100ms to 1m"},
		"lease and debt":          {`{"limits":[` + tokens + `,"oversize":"debt"}],"lease":{"max_tokens":5}}`, "lease.max_tokens", "cannot be leased"},
		"preset":                  {with(`"partner":{"preset":"acme"}`), "partner.preset", "ietf, openai, anthropic"},
		"scope":                   {with(`"partner":{"scope":"key"}`), "partner.scope", "dependency, tenant"},
		"generic":                 {with(`"partner":{"preset":"generic"}`), "partner.headers", "at least one of"},
		"generic says nothing":    {with(`"partner":{"preset":"generic","headers":{}}`), "partner.headers", "at least one of"},
		"headers of a preset":     {with(`"partner":{"preset":"github","headers":{"limit":"X"}}`), "partner.headers", "generic only"},
		"header name":             {with(`"partner":{"preset":"generic","headers":{"limit":"a b"}}`), "partner.headers.limit", "RFC 9110"},
		"reset kind":              {with(`"partner":{"preset":"generic","headers":{"reset":"a","reset_kind":"x"}}`), "partner.headers.reset_kind", "delta_seconds"},
		"breaker":                 {with(`"partner":{"breaker":{"failures":0}}`), "partner.breaker.failures", "from 1"},
		"delivery":                {with(`"jobs":{"delivery":"exactly_once"}`), "jobs.delivery", "at_least_once, at_most_once"},
		"no_retry":                {with(`"jobs":{"no_retry":[200]}`), "jobs.no_retry[0]", "300 to 599"},
		"backoff":                 {with(`"jobs":{"backoff":{"initial":"1m","max":"1s"}}`), "jobs.backoff.max", "less than initial"},
		"multiplier":              {with(`"jobs":{"backoff":{"multiplier":0.5}}`), "jobs.backoff.multiplier", "from 1 to 100"},
		"attempts":                {with(`"jobs":{"max_attempts":0}`), "jobs.max_attempts", "from 1 to 1000"},
		"host with scheme":        {with(`"jobs":{"allow_hosts":["https://a.b"]}`), "jobs.allow_hosts[0]", "without scheme"},
		"host with port":          {with(`"jobs":{"allow_hosts":["a.b:80"]}`), "jobs.allow_hosts[0]", "without scheme, port"},
		"host in capitals":        {with(`"jobs":{"allow_hosts":["A.b"]}`), "jobs.allow_hosts[0]", "lower case"},
		"decimal address":         {with(`"jobs":{"allow_hosts":["2130706433"]}`), "jobs.allow_hosts[0]", "another notation"},
		"network with host bits":  {with(`"jobs":{"allow_hosts":["10.0.0.1/8"]}`), "jobs.allow_hosts[0]", "write 10.0.0.0/8"},
		"mapped address":          {with(`"jobs":{"allow_hosts":["::ffff:127.0.0.1"]}`), "jobs.allow_hosts[0]", "IPv4 as IPv4"},
		"retention":               {with(`"retention":{"dead":"0s"}`), "retention.dead", "from 1s to 8784h"},
		"idempotency_ttl":         {with(`"idempotency_ttl":"0s"`), "idempotency_ttl", "from 1s to 168h"},
		"settle_within":           {with(`"settle_within":"48h"`), "settle_within", "from 1s to 24h"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := admission.ValidateDependency("x", doc(t, tc.text))
			require.Len(t, got, 1, "%+v", got)
			path := admission.Path("dependencies.x." + tc.path)
			require.Equal(t, path, got[0].Path)
			require.Contains(t, got[0].Message, tc.message)
			_, err := admission.Compile("x", 1, doc(t, tc.text))
			require.ErrorContains(t, err, string(path))
		})
	}
}

func TestValidateAccepts(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		shopify,
		`{"unlimited":true}`,
		`{"limits":[` + tokens + `}],"plans":{"small":{"limits":{"rate":{"capacity":1}}}},"tenants":{"":{"plan":"small"},"a{b}:\n":{}}}`,
		`{"limits":[` + tokens + `,"per":"tenant"}],"plans":{"p":{"limits":{"rate":{"refill":"5/s"}}}},"tenants":{"a":{"plan":"p","limits":{"rate":{"capacity":9}}}}}`,
		`{"limits":[{"name":"l","kind":"sliding_log","limit":1000,"window":"100ms"}],"jobs":{"no_retry":[],"allow_hosts":["*","a.example","*.b.c","10.0.0.0/8","::1","fd00::/8","192.0.2.1","_x.y"]}}`,
		`{"limits":[{"name":"c","kind":"concurrency","max":1}],"queue":{"max_length":5},"jobs":{"backoff":{"initial":"1h"}}}`,
		`{"limits":[{"name":"q","kind":"quota","limit":1,"every":"month","day_of_month":31,"starts_at":"23:59"}]}`,
	} {
		require.Empty(t, admission.ValidateDependency("x", doc(t, text)), "%s", text)
	}
}

func TestValidateDocument(t *testing.T) {
	t.Parallel()
	good := doc(t, `{"unlimited":true}`)
	bad := admission.Document{
		ManagedBy:    "me",
		Dependencies: map[string]admission.DependencyDocument{"A.b": good, "x": {}, "ok": good},
		Callbacks: &admission.CallbacksDocument{
			Secrets:    []admission.Secret{"hunter2", "env:", "env:A_B", "file:/run/s", "file:", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_MfKQ"},
			AllowHosts: []string{"a/b"},
		},
	}
	got := admission.Validate(&bad)
	var paths []string
	for _, p := range got {
		paths = append(paths, string(p.Path))
		require.NotContains(t, p.Message, "hunter2")
	}
	require.Equal(t, []string{
		"managed_by", `dependencies["A.b"]`, "dependencies.x.limits",
		"callbacks.secrets[0]", "callbacks.secrets[1]", "callbacks.secrets[4]", "callbacks.secrets[6]", "callbacks.allow_hosts[0]",
	}, paths)
	require.Len(t, admission.Validate(&admission.Document{}), 1)
	require.Empty(t, admission.Validate(&admission.Document{ManagedBy: "review", Dependencies: map[string]admission.DependencyDocument{"ok": good}}))
}

// TestTooLargeToStore: a version is kept a hundred times over and loaded by every process.
func TestTooLargeToStore(t *testing.T) {
	t.Parallel()
	d := doc(t, `{"limits":[`+tokens+`,"per":"tenant"}]}`)
	d.Tenants = map[string]admission.TenantDocument{}
	for i := range 30_000 {
		d.Tenants[fmt.Sprintf("tenant-%06d", i)] = admission.TenantDocument{Limits: map[string]admission.OverrideDocument{"rate": {Capacity: new(int64(1))}}}
	}
	got := admission.ValidateDependency("x", d)
	require.Len(t, got, 1)
	require.Contains(t, got[0].Message, "share overrides by plans")
}

func TestSecretsAreNotWritten(t *testing.T) {
	t.Parallel()
	d := admission.Document{Callbacks: &admission.CallbacksDocument{Secrets: []admission.Secret{"hunter2"}, AllowHosts: []string{"a.b"}}}
	text, err := json.Marshal(d)
	require.NoError(t, err)
	require.NotContains(t, string(text), "hunter2")
	for _, format := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
		require.NotContains(t, fmt.Sprintf(format, *d.Callbacks), "hunter2")
	}
	one, err := json.Marshal(d.Callbacks.Secrets)
	require.NoError(t, err)
	require.NotContains(t, string(one), "hunter2")
}

func TestDuration(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		"0s": 0, "250ms": 250 * time.Millisecond, "1.5s": 1500 * time.Millisecond, "1m": time.Minute, "1m30s": 90 * time.Second,
		"1h": time.Hour, "1h30m": 90 * time.Minute, "1h0m5s": time.Hour + 5*time.Second, "720h": 720 * time.Hour, "10m": 10 * time.Minute,
		"1h10m": 70 * time.Minute, "100us": 100 * time.Microsecond,
	} {
		var d admission.Duration
		require.NoError(t, d.UnmarshalText([]byte(text)))
		require.Equal(t, want, d.Std())
		require.Equal(t, strings.Replace(text, "us", "µs", 1), d.String())
	}
	for _, text := range []string{"", "5", "1d", "x", strings.Repeat("1", 1000)} {
		var d admission.Duration
		err := d.UnmarshalText([]byte(text))
		require.ErrorContains(t, err, `"250ms"`)
		require.Less(t, len(err.Error()), 300)
	}
}

// documents draws valid policies.
func documents() *rapid.Generator[admission.DependencyDocument] {
	return rapid.Custom(func(t *rapid.T) admission.DependencyDocument {
		positive := rapid.Int64Range(1, 1000)
		short := rapid.Custom(func(t *rapid.T) admission.Duration {
			return admission.Duration(rapid.Int64Range(100, 20_000).Draw(t, "ms")) * admission.Duration(time.Millisecond)
		})
		maybe := func(name string) bool { return rapid.Bool().Draw(t, name) }
		d := admission.DependencyDocument{
			Description: rapid.StringN(0, 20, 60).Draw(t, "description"),
			Classes:     map[string]admission.ClassDocument{"bulk": {Tier: new(rapid.Int64Range(0, 9).Draw(t, "tier"))}},
		}
		for i := range rapid.IntRange(1, 6).Draw(t, "limits") {
			l := admission.LimitDocument{Name: fmt.Sprintf("l%d", i), Per: rapid.SampledFrom([]bucket.Per{"", "dependency", "tenant", "class"}).Draw(t, "per")}
			if maybe("confined") {
				l.Classes = []string{"bulk"}
			}
			l.Kind = rapid.SampledFrom([]bucket.Kind{bucket.TokenBucket, bucket.Concurrency, bucket.Quota, bucket.SlidingWindow, bucket.SlidingLog}).Draw(t, "kind")
			switch l.Kind {
			case bucket.TokenBucket:
				rate, err := bucket.ParseRate(fmt.Sprintf("%d/%dms", positive.Draw(t, "n"), positive.Draw(t, "p")))
				if err != nil {
					t.Fatal(err)
				}
				l.Capacity, l.Refill = new(positive.Draw(t, "capacity")), &rate
				if maybe("initial") {
					l.Initial = new(int64(0))
				}
			case bucket.Concurrency:
				l.Max, l.MaxHold = new(positive.Draw(t, "max")), new(short.Draw(t, "hold"))
			case bucket.Quota:
				l.Limit = new(positive.Draw(t, "limit"))
				l.Every = rapid.SampledFrom([]bucket.Period{bucket.Minute, bucket.Hour, bucket.Day, bucket.Week, bucket.Month}).Draw(t, "every")
				l.TimeZone = rapid.SampledFrom([]string{"", "UTC", "Europe/Berlin"}).Draw(t, "zone")
			case bucket.SlidingWindow, bucket.SlidingLog:
				l.Limit, l.Window = new(positive.Draw(t, "limit")), new(short.Draw(t, "window"))
			}
			d.Limits = append(d.Limits, l)
		}
		if maybe("queue") {
			d.Queue = &admission.QueueDocument{MaxLength: new(positive.Draw(t, "length")), LowerTierShare: new(rapid.Float64Range(0, 0.5).Draw(t, "share"))}
		}
		if maybe("store") {
			d.Store = &admission.StoreDocument{Timeout: new(short.Filter(func(d admission.Duration) bool { return d <= 10_000_000_000 }).Draw(t, "timeout"))}
		}
		if maybe("jobs") {
			d.Jobs = &admission.JobsDocument{NoRetry: rapid.SampledFrom([][]int64{nil, {}, {404}}).Draw(t, "no_retry")}
		}
		if maybe("tenants") {
			d.Tenants = map[string]admission.TenantDocument{rapid.StringN(0, 20, 256).Draw(t, "tenant"): {Weight: new(positive.Draw(t, "weight"))}}
		}
		return d
	})
}

// TestDocumentsRoundTrip: what is stored reads as what was written, and is written alike again; defaults hold when
// they are filled in twice, and change neither what is allowed nor the given document.
func TestDocumentsRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		d := documents().Draw(t, "document")
		text, err := d.Canonical()
		require.NoError(t, err)
		var back admission.DependencyDocument
		require.NoError(t, json.Unmarshal(text, &back))
		require.Equal(t, d, back, "%s", text)

		require.Empty(t, admission.ValidateDependency("x", d), "%s", text)
		filled := admission.Defaults(d)
		require.Equal(t, filled, admission.Defaults(filled))
		require.Empty(t, admission.ValidateDependency("x", filled))
		again, err := d.Canonical()
		require.NoError(t, err)
		require.Equal(t, string(text), string(again))
		_, err = admission.Compile("x", 1, d)
		require.NoError(t, err)
	})
}
