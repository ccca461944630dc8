package httpapi_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluicehq/sluice/admission"
)

const batch = admissions + "/batch"

type batchBody struct {
	Status int
	Reason string
	Item   *int
	Items  []struct {
		ID, Outcome, Reason string
		Status              int
		Replayed            bool  `json:"idempotent_replayed"`
		RetryAfterMS        int64 `json:"retry_after_ms"`
	}
}

func batchOf(t *testing.T, got answer) batchBody {
	t.Helper()
	var b batchBody
	require.NoError(t, json.Unmarshal([]byte(got.body), &b), got.body)
	return b
}

func TestBatch_passesItsItemsOn(t *testing.T) {
	t.Parallel()
	a := newAPI(t, 0)
	got := a.post(batch, `{"items":[{"tenant":"a","idempotency_key":"k \u00e9"},{}]}`)
	require.Equal(t, "items[0].idempotency_key", problemOf(t, got).Field)
	got = a.post(batch, `{"all_or_nothing":true,"items":[ {"tenant":"a","idempotency_key":"k-1"} , {"costs":{"points":3}} ]}`)
	require.Equal(t, 200, got.status)
	require.True(t, a.fake.all)
	require.Equal(t, []admission.Ask{{Tenant: "a", IdempotencyKey: "k-1"}, {Costs: map[string]int64{"points": 3}}}, a.fake.asks)
}

func TestBatch_answersEveryItem(t *testing.T) {
	t.Parallel()
	a := newAPI(t, 0)
	a.fake.batch = func([]admission.Ask) ([]admission.Decision, error) {
		replayed := admitted()
		replayed.Replayed = true
		return []admission.Decision{
			replayed, refused(admission.ReasonLimit, 1500*time.Millisecond), refused(admission.ReasonCostExceeds, 0),
			refused(admission.ReasonInvalid, 0), refused(admission.ReasonOverloaded, 0),
		}, nil
	}
	got := a.post(batch, `{"items":[{},{},{},{},{}]}`)
	require.Equal(t, 200, got.status)
	require.Empty(t, got.header.Get("Retry-After"))
	b := batchOf(t, got)
	statuses := make([]int, len(b.Items))
	for i := range b.Items {
		statuses[i] = b.Items[i].Status
	}
	require.Equal(t, []int{200, 429, 422, 400, 503}, statuses)
	require.True(t, b.Items[0].Replayed)
	require.EqualValues(t, 1500, b.Items[1].RetryAfterMS)
	require.InDelta(t, 1500, b.Items[4].RetryAfterMS, 501)
}

func TestBatch_allOrNothingRefused(t *testing.T) {
	t.Parallel()
	fits := refused(admission.ReasonBatch, 0)
	soon, late := refused(admission.ReasonLimit, time.Second), refused(admission.ReasonQuota, time.Hour)
	never := refused(admission.ReasonCostExceeds, 0)
	for _, c := range []struct {
		name      string
		decisions []admission.Decision
		item      int
		status    int
		retry     string
	}{
		{"one", []admission.Decision{fits, soon, fits}, 1, 429, "1"},
		{"the one that takes longest", []admission.Decision{soon, late, soon}, 1, 429, "3600"},
		{"one that can never go", []admission.Decision{late, fits, never, late}, 2, 422, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			a := newAPI(t, 0)
			a.fake.batch = func([]admission.Ask) ([]admission.Decision, error) { return c.decisions, nil }
			items := strings.TrimSuffix(strings.Repeat("{},", len(c.decisions)), ",")
			got := a.post(batch, `{"all_or_nothing":true,"items":[`+items+`]}`)
			require.Equal(t, c.status, got.status)
			require.Equal(t, c.retry, got.header.Get("Retry-After"))
			require.Equal(t, "application/problem+json", got.header.Get("Content-Type"))
			b := batchOf(t, got)
			require.Equal(t, c.item, *b.Item)
			require.Len(t, b.Items, len(c.decisions))
			for i := range b.Items {
				require.Equal(t, string(c.decisions[i].Reason), b.Items[i].Reason)
				if b.Items[i].Reason == "batch" {
					require.Equal(t, 424, b.Items[i].Status)
				}
			}
		})
	}
}

func TestBatch_refusesBeforeTheGate(t *testing.T) {
	t.Parallel()
	items := func(n int) string {
		return `{"items":[` + strings.TrimSuffix(strings.Repeat("{},", n), ",") + `]}`
	}
	for _, c := range []struct{ body, field, detail string }{
		{``, "", "ends too early"},
		{`{}`, "items", "is missing"},
		{`{"items":[]}`, "items", "at least one"},
		{`{"items":null}`, "items", "not null"},
		{`{"items":{}}`, "items", "must be an array of asks, not an object"},
		{`{"items":[1]}`, "items[0]", "must be an object, not a number"},
		{`{"items":[{},{"cost":-1}]}`, "items[1].cost", "not negative"},
		{`{"items":[{"costs":{"a":1.5}}]}`, "items[0].costs.a", "fraction"},
		{`{"items":[{"min_cost":3}]}`, "items[0].min_cost", "at most"},
		{`{"items":[{"mode":"queue"}]}`, "items[0].mode", `mode "queue" is not offered by this version`},
		{`{"items":[{"idempotency_key":""}]}`, "items[0].idempotency_key", "1 to 255"},
		{`{"items":[{"idempotency_kez":"a"}]}`, "items[0].idempotency_kez", "did you mean idempotency_key"},
		{`{"items":[{}],"items":[{}]}`, "items", "occurs twice"},
		{`{"items":[{}],"all_or_nothing":1}`, "all_or_nothing", "true or false"},
		{`{"items":[{}],"allOrNothing":true}`, "allOrNothing", "did you mean all_or_nothing?"},
		{`{"items":[{}]} x`, "", "more data"},
		{`{"items":[{} {}]}`, "", "comma or ]"},
		{`{"items":[{},]}`, "items[1]", "must be an object"},
		{items(1001), "items", "at most 1000"},
		{items(65)[:len(items(65))-1] + `,"all_or_nothing":true}`, "items", "at most 64 asks with all_or_nothing, not 65"},
	} {
		t.Run(c.body[:min(len(c.body), 60)], func(t *testing.T) {
			t.Parallel()
			a := newAPI(t, 0)
			got := a.post(batch, c.body)
			require.Equal(t, 400, got.status)
			p := problemOf(t, got)
			require.Equal(t, c.field, p.Field)
			require.Contains(t, p.Detail, c.detail)
			require.Zero(t, a.fake.calls)
		})
	}
	a := newAPI(t, 0)
	require.Equal(t, 200, a.post(batch, items(1000)).status)
	require.Equal(t, 200, a.post(batch, items(64)[:len(items(64))-1]+`,"all_or_nothing":true}`).status)
	r := request("POST", batch, items(1))
	r.Header.Set("Idempotency-Key", "a")
	require.Equal(t, "Idempotency-Key", problemOf(t, a.do(r)).Field)
}
