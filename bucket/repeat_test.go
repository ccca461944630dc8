//go:build unix

package bucket

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluicehq/sluice/internal/redistest"
)

// TestRepeatedCallIsRecognised: a numbered call that is repeated has the reply it had, also where the policy has changed in
// between; one that was overtaken by a later call of its process does nothing, however late it arrives.
func TestRepeatedCallIsRecognised(t *testing.T) {
	t.Parallel()
	backends(t, func(t *testing.T, client redis.UniversalClient) {
		w := newWorld(t, client, redistest.Name(t), tokenLimit(10, "1/d"),
			&Limit{Name: "c", Kind: Concurrency, Per: PerDependency, Size: 10, Hold: 3_600_000_000_000})
		defer w.close()
		send := func(number, id string) ([]reply, error) {
			batch := []*call{callOf(Ask{Set: w.set("default"), ID: id})}
			keys, args := newEncoder(w.limiter.prefix).encode(w.store.Now(), "1", batch, number, w.limiter.reply)
			raw, err := w.store.decide.Run(t.Context(), client, keys, args)
			require.NoError(t, err)
			replies, _, err := decode(raw, batch)
			return replies, err
		}
		left := func() (left []int64) {
			for _, st := range w.redis(callOf(Ask{Set: w.set("default"), Verb: View}))[0].answers[0].Limits {
				left = append(left, st.Remaining)
			}
			return left
		}
		first, err := send("9", "adm_a")
		require.NoError(t, err)
		require.Equal(t, Admitted, first[0].answers[0].Outcome)
		require.NoError(t, client.HSet(t.Context(), MetaKey(w.name), "v", 2).Err())
		again, err := send("9", "adm_a")
		require.NoError(t, err)
		require.Equal(t, first, again)
		var changed *ChangedError
		_, err = send("10", "adm_b")
		require.ErrorAs(t, err, &changed)

		require.NoError(t, client.HSet(t.Context(), MetaKey(w.name), "v", 1).Err())
		require.Equal(t, []int64{9, 9}, left())
		_, err = send("10", "adm_b")
		require.NoError(t, err)
		require.Equal(t, []int64{8, 8}, left())
		_, err = send("9", "adm_c") // numbers, not texts, are compared
		require.ErrorIs(t, err, ErrUnavailable)
		require.NotErrorIs(t, err, ErrNotRun)
		require.Equal(t, []int64{8, 8}, left())
	})
}

// TestRefusedRepetitionIsNotProof: a call may have run, and its repetition is refused; nobody is told then that nothing was
// run, because who believes it gives back twice.
func TestRefusedRepetitionIsNotProof(t *testing.T) {
	t.Parallel()
	p := newPlant(t)
	p.must(p.ask(Take))
	for _, a := range []Ask{p.grant(), p.keyed()} {
		before := p.taken()
		p.proxy.DropReplies(1)
		p.proxy.Refuse(true)
		_, err := p.do(a)
		require.ErrorIs(t, err, ErrUnavailable)
		require.NotErrorIs(t, err, ErrNotRun)
		p.proxy.Refuse(false)
		require.Equal(t, before+1, p.taken())
		p.must(p.ask(Take))
	}
}

// TestUndoKeepsTheShape: what a departed caller took is given back after the policy has changed, and the state stays what
// the new policy has made of it.
func TestUndoKeepsTheShape(t *testing.T) {
	t.Parallel()
	sliding := func(kind Kind, window time.Duration) *Limit {
		return &Limit{Name: "l", Kind: kind, Per: PerTenant, Unit: Requests, Size: 100, Window: window}
	}
	quota := func(every Period) *Limit {
		l := quotaLimit(100, calendar(t, "UTC", every, 0))
		l.Name, l.Per = "l", PerTenant
		return l
	}
	bucket := func(refill string) *Limit {
		l := tokenLimit(100, refill)
		l.Per = PerTenant
		return l
	}
	backends(t, func(t *testing.T, client redis.UniversalClient) {
		for name, row := range map[string]struct {
			was, is *Limit
			pass    time.Duration
			left    int64
		}{
			"hour to day":            {quota(Hour), quota(Day), time.Hour, 95},
			"day to hour":            {quota(Day), quota(Hour), 0, 95},
			"hour to day, next day":  {quota(Hour), quota(Day), 24 * time.Hour, 100},
			"minute to hour":         {sliding(SlidingWindow, time.Minute), sliding(SlidingWindow, time.Hour), 3 * time.Minute, 95},
			"hour to minute":         {sliding(SlidingWindow, time.Hour), sliding(SlidingWindow, time.Minute), 0, 95},
			"log, minute to hour":    {sliding(SlidingLog, time.Minute), sliding(SlidingLog, time.Hour), 3 * time.Minute, 95},
			"slower refill":          {bucket("1/min"), bucket("1/h"), 30 * time.Minute, 95},
			"faster, in other terms": {bucket("1/h"), bucket("7/3h"), 3 * time.Hour, 100},
		} {
			for _, gone := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, state gone %v", name, gone), func(t *testing.T) {
					w := newWorld(t, client, redistest.Name(t), row.was)
					defer w.close()
					a := Ask{Set: w.set("default"), ID: w.id(), Class: "default", Tenant: "t"}
					undo, ok := undoLeft(callOf(a), w.both(callOf(a))[0])
					require.True(t, ok)
					w.install([]*Limit{row.is}, false)
					if gone {
						require.NoError(t, client.Del(t.Context(), tenantKeyOf(Prefix(w.name), "t")).Err())
					}
					for range 5 {
						require.Equal(t, Admitted, w.redis(callOf(Ask{Set: w.set("default"), ID: w.id(), Tenant: "t"}))[0].answers[0].Outcome)
					}
					w.redis(undo)
					w.move(row.pass.Microseconds())
					left := w.redis(callOf(Ask{Set: w.set("default"), Verb: View, Tenant: "t"}))[0].answers[0].Limits[0].Remaining
					if gone { // the give-back finds what later asks took
						require.LessOrEqual(t, left, row.left+1)
					} else {
						require.Equal(t, row.left, left)
					}
				})
			}
		}
	})
}
