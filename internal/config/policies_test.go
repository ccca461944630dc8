package config_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluicehq/sluice/admission"
	"github.com/sluicehq/sluice/bucket"
	"github.com/sluicehq/sluice/internal/config"
)

// full says every field that there is.
const full = `managed_by: file
dependencies:
  shopify:
    description: Admin API, one bucket per shop
    owners: [team-commerce]
    consumers: [team-search]
    limits:
      - {name: rate, kind: token_bucket, per: tenant, capacity: 40, refill: 2/s, initial: 0, oversize: debt, unit: points, classes: [bulk, default]}
      - {name: in-flight, kind: concurrency, max: 10, max_hold: 30s, shadow: true}
      - {name: daily, kind: quota, limit: 10000, every: day, time_zone: America/New_York, starts_at: 08:00, on_exceeded: reject}
      - {name: weekly, kind: quota, limit: 10000, every: week, weekday: friday, per: class}
      - {name: monthly, kind: quota, limit: 10000, every: month, day_of_month: 31, per: tenant_class}
      - {name: smooth, kind: sliding_window, limit: 100, window: 1m}
      - {name: exact, kind: sliding_log, limit: 1000, window: 24h}
    queue: {max_length: 100000, max_length_per_tenant: 10000, overflow: reject_new, headroom: 1, look_ahead: 100ms, lower_tier_share: 0.05, use_within: 30s, max_age: 24h}
    classes:
      interactive: {tier: 0, weight: 4}
      default: {tier: 1, weight: 1}
      bulk: {tier: 2, weight: 1}
    plans:
      plus: {weight: 3, limits: {rate: {capacity: 80, refill: 4/s}}}
    tenants:
      acme: {plan: plus, weight: 2, limits: {daily: {limit: 50000}}}
      17: {plan: plus}
      "ac.me [x]": {limits: {smooth: {limit: 7}}}
    store: {timeout: 10ms, on_failure: local, min_replicas: 2}
    lease: {max_tokens: 0, ttl: 1s}
    partner: {preset: shopify_rest, scope: tenant, breaker: {failures: 5, window: 30s, open: 10s}}
    jobs: {timeout: 30s, max_attempts: 5, max_throttled: 100, backoff: {initial: 1s, multiplier: 2, max: 5m}, delivery: at_least_once, no_retry: [400, 401, 404, 410, 422], allow_hosts: ["*.myshopify.com", 10.0.0.0/8, "::1"]}
    retention: {done: 24h, done_max: 10000, dead: 720h}
    idempotency_ttl: 10m
    settle_within: 10m
  own:
    unlimited: true
    partner: {preset: generic, headers: {limit: X-Limit, remaining: X-Left, used: X-Used, reset: X-Reset, reset_kind: epoch_ms}}
callbacks: {secrets: ["env:SLUICE_CALLBACK_SECRET", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"], allow_hosts: []}
`

func TestParsePolicies(t *testing.T) {
	t.Parallel()
	doc, err := config.ParsePolicies("policies.yaml", []byte(full))
	require.NoError(t, err)
	require.Equal(t, "file", doc.ManagedBy)
	require.Len(t, doc.Dependencies, 2)
	d := doc.Dependencies["shopify"]
	require.Equal(t, []string{"team-commerce"}, d.Owners)
	require.Equal(t, &bucket.Rate{N: 1, P: 500_000}, d.Limits[0].Refill)
	require.Equal(t, int64(0), *d.Limits[0].Initial)
	require.Equal(t, []string{"bulk", "default"}, d.Limits[0].Classes)
	require.Equal(t, 30*time.Second, d.Limits[1].MaxHold.Std())
	require.True(t, d.Limits[1].Shadow)
	require.Equal(t, "08:00", d.Limits[2].StartsAt)
	require.InDelta(t, 0.05, *d.Queue.LowerTierShare, 0)
	require.Equal(t, int64(0), *d.Classes["interactive"].Tier)
	require.Equal(t, int64(80), *d.Plans["plus"].Limits["rate"].Capacity)
	require.Equal(t, "plus", d.Tenants["17"].Plan)
	require.Equal(t, int64(7), *d.Tenants["ac.me [x]"].Limits["smooth"].Limit)
	require.Equal(t, admission.FailLocal, d.Store.OnFailure)
	require.Equal(t, []int64{400, 401, 404, 410, 422}, d.Jobs.NoRetry)
	require.Equal(t, admission.Secret("env:SLUICE_CALLBACK_SECRET"), doc.Callbacks.Secrets[0])
	require.Equal(t, "epoch_ms", doc.Dependencies["own"].Partner.Headers.ResetKind)
}

// TestJSONIsAPolicyFile: the API's JSON and the file's YAML are one notation.
func TestJSONIsAPolicyFile(t *testing.T) {
	t.Parallel()
	doc, err := config.ParsePolicies("p.json", []byte(`{"dependencies": {"x": {"limits": [{"name": "rate", "kind": "token_bucket", "capacity": 5, "refill": "1/min"}]}}}`))
	require.NoError(t, err)
	require.Equal(t, int64(5), *doc.Dependencies["x"].Limits[0].Capacity)
}

// head is what a small file begins with: what follows is the content of a dependency from line 3, column 5 on.
const head = "dependencies:\n  x:\n"

// mistakes parses the text and gives its mistakes as line:column path: message.
func mistakes(t *testing.T, text string) []config.PolicyProblem {
	t.Helper()
	doc, err := config.ParsePolicies("p.yaml", []byte(text))
	require.Nil(t, doc)
	var bad *config.PolicyError
	require.ErrorAs(t, err, &bad)
	require.NotEmpty(t, bad.Problems)
	return bad.Problems
}

func TestMistakeIsFoundWhereItStands(t *testing.T) {
	t.Parallel()
	limit := func(fields string) string { return head + "    limits:\n      - {name: rate, " + fields + "}\n" }
	bucketWith := func(fields string) string { return limit("kind: token_bucket, " + fields) }
	for name, tc := range map[string]struct {
		text      string
		line, col int
		path      string
		message   []string
	}{
		"empty file":            {"", 0, 0, "", []string{"empty"}},
		"only a comment":        {"# nothing\n", 0, 0, "", []string{"empty"}},
		"syntax":                {"dependencies: [1,\n", 1, 15, "", []string{"sequence end token"}},
		"a list":                {"- a\n", 1, 1, "", []string{"is a list; needed is a map"}},
		"no dependencies":       {"managed_by: file\n", 1, 1, "dependencies", []string{"missing or empty"}},
		"two documents":         {head + "    unlimited: true\n---\na: 1\n", 5, 1, "", []string{"second document"}},
		"not UTF-8":             {"a: 1\nb: \xff\n", 2, 1, "", []string{"not UTF-8"}},
		"unknown at the top":    {"dependancies: {}\n", 1, 1, "dependancies", []string{"did you mean dependencies?"}},
		"unknown in a limit":    {bucketWith("capacity: 1, refill: 1/s, rat: 5"), 4, 68, "dependencies.x.limits[0].rat", []string{"no known field", "did you mean refill?", "allowed are name, kind"}},
		"slip of the pen":       {bucketWith("capacty: 1, capacity: 1, refill: 1/s"), 4, 42, "dependencies.x.limits[0].capacty", []string{"did you mean capacity?"}},
		"misplaced block":       {head + "    unlimited: true\n    limiter: {max: 1}\n", 4, 5, "dependencies.x.limiter", []string{"did you mean limits?"}},
		"repeated field":        {bucketWith("capacity: 1, refill: 1/s, capacity: 2"), 4, 68, "dependencies.x.limits[0].capacity", []string{"there already, in line 4"}},
		"repeated dependency":   {head + "    unlimited: true\n  x:\n    unlimited: true\n", 4, 3, "dependencies.x", []string{"there already, in line 2"}},
		"number as text":        {bucketWith(`refill: 1/s, capacity: "40"`), 4, 65, "dependencies.x.limits[0].capacity", []string{"whole number", "write 40 without quotes"}},
		"fraction":              {bucketWith(`refill: 1/s, capacity: 1.5`), 4, 65, "dependencies.x.limits[0].capacity", []string{"1.5", "whole number"}},
		"negative":              {bucketWith(`refill: 1/s, capacity: -1`), 4, 65, "dependencies.x.limits[0].capacity", []string{"is -1", "from 1 to"}},
		"overflow":              {bucketWith(`refill: 1/s, capacity: 1e400`), 4, 65, "dependencies.x.limits[0].capacity", []string{"1e400", "whole number"}},
		"too many digits":       {bucketWith(`refill: 1/s, capacity: 99999999999999999999`), 4, 65, "dependencies.x.limits[0].capacity", []string{"whole number below 2^63"}},
		"octal":                 {bucketWith(`refill: 1/s, capacity: 010`), 4, 65, "dependencies.x.limits[0].capacity", []string{"plain decimal digits"}},
		"hexadecimal":           {bucketWith(`refill: 1/s, capacity: 0x10`), 4, 65, "dependencies.x.limits[0].capacity", []string{"plain decimal digits"}},
		"grouped":               {bucketWith(`refill: 1/s, capacity: 1_000`), 4, 65, "dependencies.x.limits[0].capacity", []string{"plain decimal digits"}},
		"infinity":              {bucketWith(`refill: 1/s, capacity: .inf`), 4, 65, "dependencies.x.limits[0].capacity", []string{"plain decimal digits"}},
		"null":                  {bucketWith(`refill: 1/s, capacity: null`), 4, 65, "dependencies.x.limits[0].capacity", []string{"is empty"}},
		"nothing after colon":   {head + "    limits:\n    unlimited: true\n", 3, 12, "dependencies.x.limits", []string{"is empty"}},
		"rate without period":   {bucketWith(`capacity: 1, refill: "10"`), 4, 63, "dependencies.x.limits[0].refill", []string{"no period", `"1/min"`}},
		"rate as number":        {bucketWith(`capacity: 1, refill: 10`), 4, 63, "dependencies.x.limits[0].refill", []string{"no period", `"1/min"`}},
		"rate as list":          {bucketWith(`capacity: 1, refill: [1]`), 4, 63, "dependencies.x.limits[0].refill", []string{"is a list; needed is a rate"}},
		"duration without unit": {head + "    unlimited: true\n    store: {timeout: 10}\n", 4, 22, "dependencies.x.store.timeout", []string{`duration "10"`, `"250ms"`}},
		"text for a switch":     {head + "    unlimited: yes\n", 3, 16, "dependencies.x.unlimited", []string{"is text; needed is true or false"}},
		"number for text":       {head + "    unlimited: true\n    description: 5\n", 4, 18, "dependencies.x.description", []string{`write "5"`}},
		"text for a list":       {head + "    unlimited: true\n    owners: me\n", 4, 13, "dependencies.x.owners", []string{"needed is a list"}},
		"list for a map":        {head + "    unlimited: true\n    classes: [a]\n", 4, 14, "dependencies.x.classes", []string{"needed is a map"}},
		"text for a number":     {head + "    unlimited: true\n    queue: {lower_tier_share: much}\n", 4, 31, "dependencies.x.queue.lower_tier_share", []string{"needed is a number"}},
		"tag":                   {head + "    unlimited: !!bool true\n", 3, 16, "dependencies.x.unlimited", []string{"tag"}},
		"missing capacity":      {bucketWith(`refill: 1/s`), 4, 9, "dependencies.x.limits[0].capacity", []string{"is missing"}},
		"dependency's name":     {"dependencies:\n  Big One: {unlimited: true}\n", 2, 3, `dependencies["Big One"]`, []string{"no name for a dependency"}},
		"override's value":      {bucketWith(`capacity: 1, refill: 1/s`) + "    tenants:\n      a.b: {limits: {rate: {capacity: 0}}}\n", 6, 39, `dependencies.x.tenants["a.b"].limits.rate.capacity`, []string{"from 1"}},
		"secret of wrong kind":  {head + "    unlimited: true\ncallbacks: {secrets: hunter2}\n", 4, 22, "callbacks.secrets", []string{"needed is a list"}},
		"numeric secret":        {head + "    unlimited: true\ncallbacks: {secrets: [hunter2]}\n", 4, 23, "callbacks.secrets[0]", []string{"is no secret"}},
		"unknown alias":         {head + "    unlimited: *no\n", 3, 16, "dependencies.x.unlimited", []string{"no anchor"}},
		"alias in itself":       {"dependencies:\n  x: &a {<<: *a, unlimited: true}\n", 2, 14, "dependencies.x", []string{"within its own anchor"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := mistakes(t, tc.text)
			var found *config.PolicyProblem
			for i := range got {
				if string(got[i].Path) == tc.path {
					found = &got[i]
					break
				}
			}
			require.NotNil(t, found, "%+v", got)
			require.Equal(t, []int{tc.line, tc.col}, []int{found.Line, found.Column}, "%+v", got)
			for _, m := range tc.message {
				require.Contains(t, found.Message, m)
			}
			for _, p := range got {
				require.NotContains(t, p.Message, "hunter2")
			}
		})
	}
}

// TestAllMistakesAtOnce: reading goes on after each mistake, and what is wrong in the notation does not hide what is
// wrong in the meaning, nor is anything complained of twice.
func TestAllMistakesAtOnce(t *testing.T) {
	t.Parallel()
	_, err := config.ParsePolicies("policies.yaml", []byte(`managed_by: me
dependencies:
  one:
    limits:
      - {name: rate, kind: token_bucket, capacity: "40", refill: 10, rat: 1}
      - {name: rate, kind: quota, limit: 5, every: day, refill: 1/s, time_zone: Mars/Olympus}
      - 5
  two: {}
  two: {unlimited: true}
unknown: 1
`))
	require.EqualError(t, err, strings.TrimSpace(`
policies.yaml:1:13: managed_by: is "me"; allowed are file, review
policies.yaml:5:52: dependencies.one.limits[0].capacity: is text; needed is a whole number: write 40 without quotes
policies.yaml:5:66: dependencies.one.limits[0].refill: rate "10": no period; allowed is a number, a slash and s, min, h, d or a duration, such as "10/s", "0.5/s", "1/min" or "5/1.3s"
policies.yaml:5:70: dependencies.one.limits[0].rat: is no known field; did you mean refill? allowed are name, kind, per, classes, unit, shadow, on_exceeded, capacity, refill, initial, oversize, max, max_hold, limit, every, time_zone, starts_at, weekday, day_of_month, window
policies.yaml:6:16: dependencies.one.limits[1].name: is "rate", like limits[0]; each limit of a dependency needs a name of its own
policies.yaml:6:65: dependencies.one.limits[1].refill: does not belong to a quota, which takes limit, every, time_zone, starts_at, weekday, day_of_month; remove it or make it a token_bucket
policies.yaml:6:81: dependencies.one.limits[1].time_zone: time zone "Mars/Olympus" does not exist; allowed are names of the IANA database such as "Europe/Berlin" or "UTC"
policies.yaml:7:9: dependencies.one.limits[2]: is a number; needed is a map of fields, each on a line of its own
policies.yaml:8:3: dependencies.two.limits: is missing or empty; add a limit, or say unlimited: true if nothing is ever to be refused
policies.yaml:9:3: dependencies.two: is there already, in line 8; remove one
policies.yaml:10:1: unknown: is no known field; allowed are managed_by, dependencies, callbacks
`))
}

func TestAnchorsAndMerges(t *testing.T) {
	t.Parallel()
	doc, err := config.ParsePolicies("p.yaml", []byte(`dependencies:
  a:
    limits: &limits
      - &rate {name: rate, kind: token_bucket, capacity: 5, refill: 1/s}
  b: {limits: *limits}
  c:
    limits:
      - <<: *rate
        capacity: 7
`))
	require.NoError(t, err)
	require.Equal(t, doc.Dependencies["a"].Limits, doc.Dependencies["b"].Limits)
	require.Equal(t, int64(7), *doc.Dependencies["c"].Limits[0].Capacity)
	require.Equal(t, "rate", doc.Dependencies["c"].Limits[0].Name)
}

func TestBombsAreRefusedQuickly(t *testing.T) {
	t.Parallel()
	laughs := "dependencies:\n  a0: &a0 {owners: &o0 [x,x,x,x,x,x,x,x,x,x]}\n"
	for i := 1; i < 12; i++ {
		laughs += "  b" + string(rune('a'+i)) + ": {owners: &o" + string(rune('0'+i)) + " ["
		laughs += strings.TrimSuffix(strings.Repeat("*o"+string(rune('0'+i-1))+",", 10), ",") + "]}\n"
	}
	tenants := "dependencies:\n  a:\n    unlimited: true\n    tenants: &t\n"
	for range 2000 {
		tenants += "      t" + strings.Repeat("x", len(tenants)%1000) + string(rune('a'+len(tenants)%26)) + ": {}\n"
	}
	for i := range 200 {
		tenants += "  d" + string(rune('a'+i%26)) + string(rune('a'+i/26)) + ": {unlimited: true, tenants: *t}\n"
	}
	merges := "dependencies:\n  a: &m0 {unlimited: true}\n"
	for i := 1; i < 40; i++ {
		prev, this := "m"+strings.Repeat("x", i-1), "m"+strings.Repeat("x", i)
		if i == 1 {
			prev = "m0"
		}
		merges += "  c" + strings.Repeat("x", i) + ": &" + this + " {<<: [*" + prev + ", *" + prev + "]}\n"
	}
	for name, text := range map[string]string{
		"billion laughs":  laughs,
		"repeated map":    tenants,
		"repeated merges": merges,
		"deep flow":       "a: " + strings.Repeat("[", 1_000_000),
		"deep map":        "a: " + strings.Repeat("{a: ", 500_000),
		"deep block":      strings.Repeat("- ", 1_000_000),
		"deep keys":       strings.Repeat("? ", 1_000_000),
		"large":           strings.Repeat("# nothing at all\n", 300_000),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			done := make(chan error, 1)
			go func() {
				_, err := config.ParsePolicies("p.yaml", []byte(text))
				done <- err
			}()
			select {
			case err := <-done:
				require.Error(t, err)
				require.Less(t, len(err.Error()), 1<<20)
			case <-time.After(20 * time.Second):
				require.Fail(t, "still parsing")
			}
		})
	}
}

func TestLoadPolicies(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "p.yaml")
	_, err := config.LoadPolicies(path)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NoError(t, os.WriteFile(path, []byte(full), 0o600))
	doc, err := config.LoadPolicies(path)
	require.NoError(t, err)
	require.Len(t, doc.Dependencies, 2)
	require.NoError(t, os.WriteFile(path, []byte("x: 1\n"), 0o600))
	_, err = config.LoadPolicies(path)
	require.ErrorContains(t, err, path+":1:1: x: is no known field")
}

func FuzzParsePolicies(f *testing.F) {
	f.Add([]byte(full))
	for _, s := range []string{
		"", "a", "a: b", head + "    unlimited: true\n", "dependencies: {x: {limits: [{name: a, kind: quota, limit: 1, every: day}]}}",
		"a: &a [*a]", "<<: *x", "dependencies: &d {x: {<<: *d}}", "? a\n: b", "- - -", "a: !!x b", "a: |\n  b", "{a: 1, a: 2}", "dependencies: {x: {limits: [1, {kind: 2}]}}",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		doc, err := config.ParsePolicies("f", data)
		if err != nil {
			require.Nil(t, doc)
			return
		}
		require.Empty(t, admission.Validate(doc))
		for name, d := range doc.Dependencies {
			_, err := admission.Compile(name, 1, d)
			require.NoError(t, err)
		}
	})
}
