package admission_test

import (
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluicehq/sluice/admission"
	"github.com/sluicehq/sluice/internal/redistest"
)

// TestGateOneTightPolicyLeavesOthersAlone: what is too slow for a policy of 1 ms is in time for one of seconds, so its
// trouble is its own, however many callers it has.
func TestGateOneTightPolicyLeavesOthersAlone(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr())
	g := newGate(t, proxy.Client(t), "tight", `{"limits":[{"name":"rate","kind":"token_bucket","capacity":1000000,"refill":"1000/s"}],"store":{"timeout":"1ms"}}`)
	require.NoError(t, g.Apply(t.Context(), document(t, map[string]string{
		"calm": `{"limits":[{"name":"rate","kind":"token_bucket","capacity":1000000,"refill":"1000/s"}],"store":{"timeout":"10s"}}`,
	})))
	proxy.Delay(5 * time.Millisecond)
	var tight sync.WaitGroup
	late := make([]int, 16)
	for i := range late {
		tight.Go(func() {
			for range 500 {
				d, err := g.Admit(t.Context(), "tight", admission.Ask{})
				if err == nil && d.Reason == admission.ReasonStoreUnavailable {
					late[i]++
				}
			}
		})
	}
	for range 60 {
		d, err := g.Admit(t.Context(), "calm", admission.Ask{})
		require.NoError(t, err)
		require.Equal(t, admission.OutcomeAdmitted, d.Outcome, d.Detail)
	}
	tight.Wait()
	sum := 0
	for _, n := range late {
		sum += n
	}
	require.Positive(t, sum, "the tight policy was in trouble")
}

// TestGateBatchOutlivesPolicyChanges: a batch goes out in pieces; a policy that changes between two of them leaves no
// token that nobody was told of.
func TestGateBatchOutlivesPolicyChanges(t *testing.T) {
	t.Parallel()
	client := redistest.Shared(t)
	const capacity = 10_000
	policy := func(i int) string {
		return `{"description":"` + strconv.Itoa(i) + `","limits":[{"name":"rate","kind":"token_bucket","capacity":` +
			strconv.Itoa(capacity) + `,"refill":"1/d"}],"store":{"timeout":"10s"}}`
	}
	name := redistest.Name(t)
	g, other := newGate(t, client, name, policy(0)), newGate(t, client, name, "")
	stop := make(chan struct{})
	var changes sync.WaitGroup
	changes.Go(func() {
		for i := 1; ; i++ {
			select {
			case <-stop:
				return
			default:
				other.apply(policy(i))
			}
		}
	})
	admitted := 0
	for range 30 {
		asks := make([]admission.Ask, 300)
		decisions, err := g.AdmitBatch(t.Context(), name, asks, false)
		if err != nil { // it changed faster than it could be followed, before anything was taken
			continue
		}
		for _, d := range decisions {
			if d.Outcome == admission.OutcomeAdmitted {
				admitted++
			}
		}
	}
	close(stop)
	changes.Wait()
	require.Positive(t, admitted)
	require.Equal(t, int64(capacity-admitted), g.left()["rate"])
}

// TestGateReplayTellsWhatIsLeft: a reservation that is asked for again by its key says how long it is still to wait, and
// one that was cancelled is asked for anew.
func TestGateReplayTellsWhatIsLeft(t *testing.T) {
	t.Parallel()
	g := newGate(t, redistest.Shared(t), redistest.Name(t),
		`{"limits":[{"name":"rate","kind":"token_bucket","capacity":1,"refill":"1/min"}],"store":{"timeout":"10s"}}`)
	g.must(admission.Ask{})
	ask := admission.Ask{Mode: admission.ModeReserve, Wait: time.Minute, IdempotencyKey: "k"}
	first := g.must(ask)
	again := g.must(ask)
	require.True(t, again.Replayed)
	require.Equal(t, first.ID, again.ID)
	require.WithinDuration(t, first.StartAt, again.StartAt, 0)
	require.Less(t, again.StartIn, first.StartIn)
	_, err := g.Grant(t.Context(), g.name, first.ID, admission.GrantOp{Verb: admission.GrantCancel})
	require.NoError(t, err)
	anew := g.must(ask)
	require.False(t, anew.Replayed)
	require.NotEqual(t, first.ID, anew.ID)
}
