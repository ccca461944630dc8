package admission_test

import (
	"log/slog"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluicehq/sluice/admission"
	"github.com/sluicehq/sluice/bucket"
	"github.com/sluicehq/sluice/internal/redistest"
)

// notes is what a gate told its Recorder.
type notes struct {
	mu       sync.Mutex
	modes    map[string][]string // by dependency
	repaired map[string]int
	version  int64 // of the last policy
}

func (*notes) StoreCall(string, time.Duration, error) {}
func (*notes) ScriptLoaded()                          {}

func (n *notes) Policy(_ string, version int64, _ []string, _ []*bucket.Limit) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.version = version
}

// mode is how the dependency is answered now.
func (n *notes) mode(dependency string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	modes := n.modes[dependency]
	return modes[len(modes)-1]
}

func (n *notes) StoreMode(dependency, mode string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.modes[dependency] = append(n.modes[dependency], mode)
}

func (n *notes) Repaired(what string, count int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.repaired[what] += count
}

func (n *notes) repairs(what string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.repaired[what]
}

// gate is a Gate and one dependency that it knows.
type gate struct {
	*admission.Gate
	t      *testing.T
	name   string
	client redis.UniversalClient
	notes  *notes
}

// newGate applies the policy under a name of the test's own; "" applies none.
func newGate(t *testing.T, client redis.UniversalClient, name, policy string) *gate {
	t.Helper()
	n := &notes{modes: map[string][]string{}, repaired: map[string]int{}}
	g := &gate{
		Gate: admission.NewGate(admission.GateConfig{Client: client, Logger: slog.New(slog.DiscardHandler), Metrics: n}),
		t:    t, name: name, client: client, notes: n,
	}
	t.Cleanup(g.Close)
	if policy != "" {
		g.apply(policy)
	}
	return g
}

func (g *gate) apply(policy string) {
	g.t.Helper()
	require.NoError(g.t, g.Apply(g.t.Context(), document(g.t, map[string]string{g.name: policy})))
}

func document(t *testing.T, policies map[string]string) *admission.Document {
	t.Helper()
	d := &admission.Document{Dependencies: map[string]admission.DependencyDocument{}}
	for name, text := range policies {
		d.Dependencies[name] = doc(t, text)
	}
	return d
}

func (g *gate) ask(a admission.Ask) admission.Decision {
	g.t.Helper()
	d, err := g.Admit(g.t.Context(), g.name, a)
	require.NoError(g.t, err)
	return d
}

func (g *gate) must(a admission.Ask) admission.Decision {
	g.t.Helper()
	d := g.ask(a)
	require.Equal(g.t, admission.OutcomeAdmitted, d.Outcome, d.Detail)
	return d
}

// left is what remains of the dependency-wide limits, by name.
func (g *gate) left() map[string]int64 {
	g.t.Helper()
	o, err := g.Dependency(g.t.Context(), g.name)
	require.NoError(g.t, err)
	left := map[string]int64{}
	for _, s := range o.States {
		left[s.Limit.Name] = s.Remaining
	}
	return left
}

const twoUnits = `{
  "limits": [
    {"name": "rate", "kind": "token_bucket", "capacity": 10, "refill": "1/h"},
    {"name": "points", "kind": "token_bucket", "capacity": 50, "refill": "1/h", "unit": "points"},
    {"name": "in-flight", "kind": "concurrency", "max": 8, "max_hold": "1h"}],
  "classes": {"bulk": {}}, "store": {"timeout": "10s"}}`

// TestGateNamesTheField: what is wrong with an ask is told by the field's name, and nothing is taken.
func TestGateNamesTheField(t *testing.T) {
	t.Parallel()
	g := newGate(t, redistest.Shared(t), redistest.Name(t), twoUnits)
	full := g.left()
	held := g.must(admission.Ask{SettleLater: true}).ID
	before := g.left()
	type costs = map[string]int64
	for _, row := range []struct {
		field, message string
		ask            admission.Ask
	}{
		{"class", "must be one of bulk, default", admission.Ask{Class: "nope"}},
		{"costs.tokens", "its units are requests, points", admission.Ask{Costs: costs{"tokens": 1}}},
		{"costs.tokens", "its units are requests, points", admission.Ask{Costs: costs{"tokens": 1, "points": 1}}},
		{"cost", "from 0 to", admission.Ask{Costs: costs{"requests": -1}}},
		{"cost", "from 0 to", admission.Ask{Costs: costs{"requests": bucket.MaxSize + 1}}},
		{"costs.points", "from 0 to", admission.Ask{Costs: costs{"points": -1}}},
		{"min_cost", "which is 3", admission.Ask{Costs: costs{"points": 3}, MinCosts: costs{"points": 5}}},
		{"min_costs.tokens", "its units are", admission.Ask{MinCosts: costs{"tokens": 1}}},
		{"min_cost", "reject", admission.Ask{Mode: admission.ModeReserve, MinCosts: costs{"points": 1}}},
		{"mode", "reserve", admission.Ask{Mode: "queue"}},
		{"wait", "reserve", admission.Ask{Wait: time.Second}},
		{"wait", "60s", admission.Ask{Mode: admission.ModeReserve, Wait: 61 * time.Second}},
		{"wait", "60s", admission.Ask{Mode: admission.ModeReserve, Wait: -1}},
		{"tenant", "UTF-8", admission.Ask{Tenant: "\xff"}},
		{"tenant", "256 bytes", admission.Ask{Tenant: strings.Repeat("a", 257)}},
	} {
		var wrong *admission.FieldError
		_, err := g.Admit(t.Context(), g.name, row.ask)
		require.ErrorAs(t, err, &wrong, row.field)
		require.Equal(t, row.field, wrong.Field)
		require.Contains(t, wrong.Message, row.message)
		for _, together := range []bool{false, true} {
			_, err = g.AdmitBatch(t.Context(), g.name, []admission.Ask{{}, row.ask}, together)
			require.ErrorAs(t, err, &wrong, row.field)
			require.Equal(t, "items[1]."+row.field, wrong.Field)
		}
	}
	for field, op := range map[string]admission.GrantOp{
		"cost":         {Verb: admission.GrantSettle},
		"costs.tokens": {Verb: admission.GrantSettle, Costs: costs{"tokens": 1}},
		"costs.points": {Verb: admission.GrantSettle, Costs: costs{"points": -1}},
		"hold":         {Verb: admission.GrantExtend},
		"verb":         {Verb: "burn"},
	} {
		var wrong *admission.FieldError
		_, err := g.Grant(t.Context(), g.name, held, op)
		require.ErrorAs(t, err, &wrong, field)
		require.Equal(t, field, wrong.Field)
	}
	_, err := g.Admit(t.Context(), redistest.Name(t), admission.Ask{})
	require.ErrorIs(t, err, admission.ErrUnknownDependency)
	require.Equal(t, before, g.left())
	require.Equal(t, full["rate"]-1, before["rate"])
}

// TestGatePlansAndOverrides: a tenant has what its own override says, else its plan's, else the policy's.
func TestGatePlansAndOverrides(t *testing.T) {
	t.Parallel()
	g := newGate(t, redistest.Shared(t), redistest.Name(t), `{
	  "limits": [{"name": "rate", "kind": "token_bucket", "per": "tenant", "capacity": 8, "refill": "1/h"},
	             {"name": "day", "kind": "quota", "per": "tenant", "limit": 5, "every": "month"}],
	  "plans": {"plus": {"limits": {"rate": {"capacity": 3}, "day": {"limit": 6}}}},
	  "tenants": {"acme": {"plan": "plus"}, "own": {"plan": "plus", "limits": {"rate": {"capacity": 8}, "day": {"limit": 7}}}, "small": {"limits": {"rate": {"capacity": 1}}}},
	  "store": {"timeout": "10s"}}`)
	for tenant, want := range map[string]struct {
		admitted int
		by       string
		reason   admission.Reason
	}{
		"":      {5, "day", admission.ReasonQuota},
		"plain": {5, "day", admission.ReasonQuota},
		"acme":  {3, "rate", admission.ReasonLimit},
		"own":   {7, "day", admission.ReasonQuota},
		"small": {1, "rate", admission.ReasonLimit},
	} {
		for range want.admitted {
			g.must(admission.Ask{Tenant: tenant})
		}
		d := g.ask(admission.Ask{Tenant: tenant})
		require.Equal(t, admission.OutcomeRejected, d.Outcome, tenant)
		require.Equal(t, want.reason, d.Reason, tenant)
		require.Equal(t, want.by, d.BlockedBy, tenant)
		require.Equal(t, []string{want.by}, d.Violated, tenant)
		require.Positive(t, d.Available)
		require.GreaterOrEqual(t, d.RetryAfter, d.Available)
	}
}

// TestGateIdempotency: an admitted answer is given again to the same ask with the same key; a refusal is not kept.
func TestGateIdempotency(t *testing.T) {
	t.Parallel()
	client, name := redistest.Shared(t), redistest.Name(t)
	g, other := newGate(t, client, name, twoUnits), newGate(t, client, name+"o", twoUnits)
	a := admission.Ask{Tenant: "acme", Costs: map[string]int64{"points": 5}, IdempotencyKey: "k", SettleLater: true}
	first := g.must(a)
	again := g.must(a)
	require.True(t, again.Replayed)
	require.False(t, first.Replayed)
	require.Equal(t, first.ID, again.ID)
	require.Equal(t, first.Limits, again.Limits)
	require.Equal(t, first.Grant, again.Grant)
	require.Equal(t, map[string]int64{"rate": 9, "points": 45, "in-flight": 7}, g.left())

	for what, change := range map[string]func(*admission.Ask){
		"tenant":  func(a *admission.Ask) { a.Tenant = "brand" },
		"class":   func(a *admission.Ask) { a.Class = "bulk" },
		"costs":   func(a *admission.Ask) { a.Costs = map[string]int64{"points": 6} },
		"units":   func(a *admission.Ask) { a.Costs = map[string]int64{"points": 5, "requests": 2} },
		"minima":  func(a *admission.Ask) { a.MinCosts = map[string]int64{"points": 1} },
		"mode":    func(a *admission.Ask) { a.Mode = admission.ModeReserve },
		"settles": func(a *admission.Ask) { a.SettleLater = false },
	} {
		b := a
		b.Costs = maps.Clone(a.Costs)
		change(&b)
		d := g.ask(b)
		require.Equal(t, admission.ReasonMismatch, d.Reason, what)
		require.Equal(t, admission.OutcomeRejected, d.Outcome, what)
	}
	require.Equal(t, map[string]int64{"rate": 9, "points": 45, "in-flight": 7}, g.left())

	require.False(t, other.must(a).Replayed, "of another dependency")
	a.APIKeyID = "another"
	require.False(t, g.must(a).Replayed, "of another API key")

	bare := other.must(admission.Ask{IdempotencyKey: "bare"})
	spelled := other.must(admission.Ask{IdempotencyKey: "bare", Class: "default", Mode: admission.ModeReject, Costs: map[string]int64{"requests": 1}})
	require.Equal(t, bare.ID, spelled.ID, "the same ask with its defaults spelled out")

	full := admission.Ask{Costs: map[string]int64{"requests": 9}, IdempotencyKey: "refused"}
	require.Equal(t, admission.ReasonLimit, g.ask(full).Reason)
	_, err := g.Grant(t.Context(), g.name, first.ID, admission.GrantOp{Verb: admission.GrantSettle, Costs: map[string]int64{"requests": 0}})
	require.NoError(t, err)
	d := g.must(full)
	require.False(t, d.Replayed, "the same key asks again")
	require.True(t, g.must(full).Replayed)
}

// TestGateGrants: what can be done with a grant, once, and what not.
func TestGateGrants(t *testing.T) {
	t.Parallel()
	g := newGate(t, redistest.Shared(t), redistest.Name(t), twoUnits)
	do := func(id string, op admission.GrantOp) (admission.Settlement, error) {
		return g.Grant(t.Context(), g.name, id, op)
	}
	settle := admission.GrantOp{Verb: admission.GrantSettle, Costs: map[string]int64{"points": 12}}
	release, cancel := admission.GrantOp{Verb: admission.GrantRelease}, admission.GrantOp{Verb: admission.GrantCancel}
	extend := admission.GrantOp{Verb: admission.GrantExtend, Hold: time.Minute}

	d := g.must(admission.Ask{Tenant: "acme", Costs: map[string]int64{"points": 40}, SettleLater: true})
	require.Equal(t, d.Now.Add(10*time.Minute), d.Grant.SettleBy)
	s, err := do(d.ID, settle)
	require.NoError(t, err)
	require.Equal(t, map[string]int64{"points": 28}, s.Returned)
	for range 2 {
		s, err = do(d.ID, settle)
		require.NoError(t, err)
		require.True(t, s.Replayed)
		require.Equal(t, int64(28), s.Returned["points"])
	}
	require.Equal(t, map[string]int64{"rate": 9, "points": 38, "in-flight": 8}, g.left())
	_, err = do(d.ID, extend)
	require.ErrorIs(t, err, admission.ErrGrantEnded)

	d = g.must(admission.Ask{})
	require.True(t, d.Grant.SettleBy.IsZero())
	_, err = do(d.ID, settle)
	require.ErrorIs(t, err, admission.ErrGrantEnded, "it was not to be settled")
	_, err = do(d.ID, cancel)
	require.ErrorIs(t, err, admission.ErrNotCancellable, "it has started")
	s, err = do(d.ID, extend)
	require.NoError(t, err)
	require.GreaterOrEqual(t, s.ExpiresAt, d.Grant.ExpiresAt)
	s, err = do(d.ID, release)
	require.NoError(t, err)
	require.False(t, s.Late)
	_, err = do(d.ID, release)
	require.NoError(t, err, "twice is harmless")
	_, err = do(d.ID, extend)
	require.ErrorIs(t, err, admission.ErrGrantEnded)

	for _, id := range []string{"", "adm_x", "adm_aaaaaaaaaaaaaaaaaaaa", d.ID + "a", "}{", strings.ToUpper(d.ID)} {
		for _, op := range []admission.GrantOp{settle, release, cancel, extend} {
			_, err = do(id, op)
			require.ErrorIs(t, err, admission.ErrUnknownGrant, id)
		}
	}
	_, err = g.Grant(t.Context(), redistest.Name(t), d.ID, release)
	require.ErrorIs(t, err, admission.ErrUnknownDependency)
	require.Equal(t, map[string]int64{"rate": 8, "points": 38, "in-flight": 8}, g.left())
}

// TestGateReservations: what is reserved for a slot ahead can be cancelled until then, with everything given back.
func TestGateReservations(t *testing.T) {
	t.Parallel()
	g := newGate(t, redistest.Shared(t), redistest.Name(t), `{"store": {"timeout": "10s"},
	  "limits": [{"name": "rate", "kind": "token_bucket", "capacity": 1, "refill": "1/30s"}]}`)
	g.must(admission.Ask{})
	r := admission.Ask{Mode: admission.ModeReserve, Wait: time.Minute}
	d := g.must(r)
	require.Positive(t, d.StartIn)
	require.Equal(t, d.Now.Add(d.StartIn), d.StartAt)
	_, err := g.Grant(t.Context(), g.name, d.ID, admission.GrantOp{Verb: admission.GrantCancel})
	require.NoError(t, err)
	again := g.must(r)
	require.LessOrEqual(t, again.StartAt, d.StartAt, "the slot is free again")
	require.Greater(t, g.must(r).StartAt, again.StartAt)
	late := g.ask(r)
	require.Equal(t, admission.ReasonLimit, late.Reason)
	require.Equal(t, "rate", late.BlockedBy)
}

// TestGateGrantsOfRemovedClass: a class is removed while its asks hold something; it is given back all the same.
func TestGateGrantsOfRemovedClass(t *testing.T) {
	t.Parallel()
	policy := func(classes, confined string) string {
		return `{"store": {"timeout": "10s"}, "classes": {"a": {}` + classes + `}, "limits": [
		  {"name": "slots", "kind": "concurrency", "max": 5, "max_hold": "1h", "classes": ["a"` + confined + `]},
		  {"name": "points", "kind": "token_bucket", "unit": "points", "capacity": 100, "refill": "1/h", "classes": ["a"` + confined + `]},
		  {"name": "each", "kind": "token_bucket", "per": "class", "capacity": 100, "refill": "1/h"}]}`
	}
	g := newGate(t, redistest.Shared(t), redistest.Name(t), policy(`, "b": {}`, `, "b"`))
	held := g.must(admission.Ask{Class: "b"})
	settled := g.must(admission.Ask{Class: "b", SettleLater: true, Costs: map[string]int64{"points": 40}})
	require.Equal(t, map[string]int64{"slots": 3, "points": 60}, g.left())
	g.apply(policy("", ""))
	_, err := g.Grant(t.Context(), g.name, held.ID, admission.GrantOp{Verb: admission.GrantRelease})
	require.NoError(t, err)
	_, err = g.Grant(t.Context(), g.name, settled.ID, admission.GrantOp{Verb: admission.GrantSettle, Costs: map[string]int64{"points": 10}})
	require.NoError(t, err)
	require.Equal(t, map[string]int64{"slots": 5, "points": 90}, g.left())
}

// TestGateConfinedSinceThen: a limit is confined to other classes while asks of a class hold it; they release it all the same.
func TestGateConfinedSinceThen(t *testing.T) {
	t.Parallel()
	policy := func(classes string) string {
		return `{"store": {"timeout": "10s"}, "classes": {"a": {}, "b": {}}, "limits": [
		  {"name": "slots", "kind": "concurrency", "max": 2, "max_hold": "1h", "classes": [` + classes + `]}]}`
	}
	g := newGate(t, redistest.Shared(t), redistest.Name(t), policy(`"a", "b"`))
	held := g.must(admission.Ask{Class: "b"})
	g.apply(policy(`"a"`))
	_, err := g.Grant(t.Context(), g.name, held.ID, admission.GrantOp{Verb: admission.GrantRelease})
	require.NoError(t, err)
	require.Equal(t, map[string]int64{"slots": 2}, g.left())
}

// TestGateShadowConcurrency: a limit that is tried out is used as one in force is: its grants end when they are released.
func TestGateShadowConcurrency(t *testing.T) {
	t.Parallel()
	g := newGate(t, redistest.Shared(t), redistest.Name(t), `{"store": {"timeout": "10s"}, "limits": [
	  {"name": "slots", "kind": "concurrency", "max": 2, "max_hold": "1h", "shadow": true}]}`)
	ids := []string{}
	for range 4 { // of which the last two would be refused
		ids = append(ids, g.must(admission.Ask{}).ID)
	}
	require.Equal(t, map[string]int64{"slots": 0}, g.left())
	for _, id := range ids[:2] {
		_, err := g.Grant(t.Context(), g.name, id, admission.GrantOp{Verb: admission.GrantRelease})
		require.NoError(t, err)
	}
	require.Equal(t, map[string]int64{"slots": 2}, g.left())
	for _, id := range ids[2:] {
		_, err := g.Grant(t.Context(), g.name, id, admission.GrantOp{Verb: admission.GrantRelease})
		require.NoError(t, err, "who is let through holds nothing, and may say so")
	}
	g.apply(`{"store": {"timeout": "10s"}, "limits": [
	  {"name": "slots", "kind": "concurrency", "max": 2, "max_hold": "1s", "shadow": true},
	  {"name": "real", "kind": "concurrency", "max": 2, "max_hold": "1h"}]}`)
	d := g.must(admission.Ask{})
	require.Equal(t, time.Hour, d.Grant.ExpiresAt.Sub(d.Now), "a limit that is tried out shortens nothing")
}

// TestGateReleasesWhatIsGone: a limit is gone while a grant holds it, and comes back after the grant was released; it holds
// nothing then.
func TestGateReleasesWhatIsGone(t *testing.T) {
	t.Parallel()
	policy := func(name string) string {
		return `{"store": {"timeout": "10s"}, "limits": [
		  {"name": "` + name + `", "kind": "concurrency", "max": 2, "max_hold": "1h"},
		  {"name": "own-` + name + `", "kind": "concurrency", "per": "tenant", "max": 2, "max_hold": "1h"},
		  {"name": "rate", "kind": "token_bucket", "capacity": 10, "refill": "1/h"}]}`
	}
	g := newGate(t, redistest.Shared(t), redistest.Name(t), policy("a"))
	held := g.must(admission.Ask{Tenant: "t"})
	settled := g.must(admission.Ask{Tenant: "t", SettleLater: true})
	g.apply(`{"store": {"timeout": "10s"}, "limits": [{"name": "rate", "kind": "token_bucket", "capacity": 10, "refill": "1/h"}]}`)
	s, err := g.Grant(t.Context(), g.name, held.ID, admission.GrantOp{Verb: admission.GrantRelease})
	require.NoError(t, err)
	require.False(t, s.Late)
	_, err = g.Grant(t.Context(), g.name, settled.ID, admission.GrantOp{Verb: admission.GrantSettle, Costs: map[string]int64{"requests": 1}})
	require.NoError(t, err)
	g.apply(policy("a"))
	require.Equal(t, int64(2), g.left()["a"])
	for range 2 {
		g.must(admission.Ask{Tenant: "t"})
	}
}
