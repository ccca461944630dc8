package bucket

import (
	"fmt"
	"math/big"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/sluicehq/sluice/internal/redistest"
)

// paceLog is what was admitted, by slot, with its net cost.
type paceLog struct {
	slots []int64
	costs []int64
	byID  map[string]int
}

func (p *paceLog) add(id string, slot, cost int64) {
	p.byID[id] = len(p.slots)
	p.slots, p.costs = append(p.slots, slot), append(p.costs, cost)
}

// check holds every interval to capacity + refill x t, the largest of each that were in force, or returns the worst one.
func (p *paceLog) check(capacity int64, refill Rate) error {
	type at struct{ slot, cost int64 }
	all := make([]at, len(p.slots))
	for i := range all {
		all[i] = at{p.slots[i], p.costs[i]}
	}
	for i := range all {
		for j := range all {
			if all[j].slot < all[i].slot {
				continue
			}
			from, to, sum := all[i].slot, all[j].slot, int64(0)
			for _, a := range all {
				if a.slot >= from && a.slot <= to {
					sum += a.cost
				}
			}
			// sum <= capacity + N x (to - from) / P, exactly.
			left := new(big.Int).Mul(big.NewInt(sum-capacity), big.NewInt(refill.P))
			if left.Cmp(new(big.Int).Mul(big.NewInt(refill.N), big.NewInt(to-from))) > 0 {
				return fmt.Errorf("%d in %d us, capacity %d, refill %s", sum, to-from, capacity, refill)
			}
		}
	}
	return nil
}

func faster(a, b Rate) Rate {
	if a.PerSecond() > b.PerSecond() {
		return a
	}
	return b
}

// TestP1Pace: takes, reservations, cancels, settlements that give back, undone takes and a policy whose capacity and
// refill change at any step never admit more than the largest capacity and refill allow, over any interval.
func TestP1Pace(t *testing.T) {
	t.Parallel()
	backends(t, func(t *testing.T, client redis.UniversalClient) {
		name, runs := redistest.Name(t), 0
		rapid.Check(t, func(rt *rapid.T) {
			runs++
			sizes := rapid.SampledFrom([]int64{1, 2, 3, 7, 100})
			rates := rapid.SampledFrom([]string{"1/min", "0.5/s", "3/s", "10/s", "1/s", "5/1.3s", "1000/s", "7/h"})
			l := tokenLimit(sizes.Draw(rt, "capacity"), rates.Draw(rt, "refill"))
			w := newWorld(rt, client, name+"-"+strconv.Itoa(runs), l)
			defer w.close()
			log := &paceLog{byID: map[string]int{}}
			capacity, refill := l.Size, l.Refill
			var ids []string
			for range rapid.IntRange(5, 40).Draw(rt, "steps") {
				switch rapid.IntRange(0, 9).Draw(rt, "step") {
				case 0:
					n := tokenLimit(sizes.Draw(rt, "capacity"), rates.Draw(rt, "refill"))
					w.install([]*Limit{n}, false)
					capacity, refill = max(capacity, n.Size), faster(refill, n.Refill)
				case 1, 2:
					w.move(rapid.SampledFrom([]int64{1, 1000, 100_000, 333_333, 1_000_000, 61_000_000}).Draw(rt, "ahead"))
				case 3:
					w.move(-rapid.SampledFrom([]int64{1, 5_000_000, 3_600_000_000}).Draw(rt, "back"))
				case 4, 5:
					if len(ids) == 0 {
						continue
					}
					id := rapid.SampledFrom(ids).Draw(rt, "id")
					a := Ask{Set: w.set("default"), Verb: Settle, ID: id}
					spent := rapid.Int64Range(0, log.costs[log.byID[id]]).Draw(rt, "spent")
					a.Costs = []int64{spent}
					if rapid.Bool().Draw(rt, "cancel") {
						a.Verb, spent = Cancel, 0
					}
					if ans := w.ask(a); ans.Outcome == Admitted && !ans.Replayed {
						log.costs[log.byID[id]] = spent
					}
				case 6:
					a := Ask{
						Set: w.set("default"), Verb: Reserve, ID: w.id(), SettleWithin: time.Minute, MaxWait: time.Minute,
						Costs: []int64{rapid.Int64Range(1, w.limits[0].Size).Draw(rt, "cost")},
					}
					if ans := w.ask(a); ans.Outcome == Admitted {
						log.add(a.ID, ans.slot, a.Costs[0])
						ids = append(ids, a.ID)
					}
				case 7:
					a := Ask{Set: w.set("default"), ID: w.id(), Costs: []int64{rapid.Int64Range(1, w.limits[0].Size).Draw(rt, "cost")}}
					if ans := w.ask(a); ans.Outcome == Admitted {
						log.add(a.ID, ans.slot, 0) // its caller left: it is given back
						w.move(rapid.Int64Range(0, 2_000_000).Draw(rt, "later"))
						undo, ok := undoLeft(callOf(a), reply{[]Answer{ans}})
						require.True(rt, ok)
						undo.asks[0].Set = w.set("default")
						w.both(undo)
					}
				default:
					a := Ask{
						Set: w.set("default"), ID: w.id(), SettleWithin: time.Minute,
						Costs: []int64{rapid.Int64Range(1, w.limits[0].Size).Draw(rt, "cost")},
					}
					if ans := w.ask(a); ans.Outcome == Admitted {
						log.add(a.ID, ans.slot, a.Costs[0])
						ids = append(ids, a.ID)
					}
				}
				require.NoError(rt, log.check(capacity, refill))
			}
		})
	})
}

// TestP1RefundBehindALaterCharge: what a charge left behind was used up by a later one, so it is not given back again.
// Capped at what is used alone, as the plain rule has it, three would start at once on a capacity of two.
func TestP1RefundBehindALaterCharge(t *testing.T) {
	t.Parallel()
	backends(t, func(t *testing.T, client redis.UniversalClient) {
		w := newWorld(t, client, redistest.Name(t), tokenLimit(2, "1/s"))
		defer w.close()
		a := w.of("", 2)
		w.move(1_000_000)
		require.Equal(t, Admitted, w.of("", 1).Outcome)
		require.Equal(t, Admitted, w.ask(Ask{Set: w.set("default"), Verb: Settle, ID: a.ID, Costs: []int64{0}}).Outcome)
		require.Equal(t, Refused, w.of("", 2).Outcome)
		require.Equal(t, Admitted, w.of("", 1).Outcome)
	})
}

// TestSettleGivesBackAllAtOnce: an estimate that is settled before others charge is given back whole, however full the
// bucket is.
func TestSettleGivesBackAllAtOnce(t *testing.T) {
	t.Parallel()
	backends(t, func(t *testing.T, client redis.UniversalClient) {
		w := newWorld(t, client, redistest.Name(t), tokenLimit(100, "1/min"))
		defer w.close()
		require.Equal(t, Admitted, w.of("", 1).Outcome)
		w.move(1_000_000)
		a := w.of("", 50)
		require.Equal(t, Admitted, w.of("", 20).Outcome)
		s := Ask{Set: w.set("default"), Verb: Settle, ID: a.ID, Costs: []int64{12}}
		require.Equal(t, []int64{38}, w.ask(s).Taken)
		require.Equal(t, int64(100-1-12-20), w.view("default", "")[0].Remaining)
		require.True(t, w.ask(s).Replayed)
		require.Equal(t, int64(100-1-12-20), w.view("default", "")[0].Remaining)
	})
}

// TestP1PaceCheckerCatches is the negative control of the checker.
func TestP1PaceCheckerCatches(t *testing.T) {
	t.Parallel()
	log := &paceLog{byID: map[string]int{}}
	log.add("a", 0, 1)
	log.add("b", 999_999, 1)
	require.Error(t, log.check(1, rate("1/s")))
	log = &paceLog{byID: map[string]int{}}
	log.add("a", 0, 1)
	log.add("b", 1_000_000, 1)
	require.NoError(t, log.check(1, rate("1/s")))
}

// TestP1PaceFlipped: capacity and refill flipped at every step, where tokens instead of what is used admitted 515 of 130
// and arrival times exceeded by 89.
func TestP1PaceFlipped(t *testing.T) {
	t.Parallel()
	for _, flip := range []struct{ capA, capB, refA, refB string }{
		{"1", "100", "10/s", "10/s"}, {"100", "100", "1/min", "10/s"}, {"1", "100", "0.5/s", "3/s"},
	} {
		t.Run(flip.capA+flip.capB+flip.refA+flip.refB, func(t *testing.T) {
			t.Parallel()
			capA, _ := strconv.ParseInt(flip.capA, 10, 64)
			capB, _ := strconv.ParseInt(flip.capB, 10, 64)
			w := newWorld(t, redistest.Shared(t), redistest.Name(t), tokenLimit(capA, flip.refA))
			defer w.close()
			log := &paceLog{byID: map[string]int{}}
			for i := range 120 {
				if i%2 == 0 {
					w.install([]*Limit{tokenLimit(capB, flip.refB)}, false)
				} else {
					w.install([]*Limit{tokenLimit(capA, flip.refA)}, false)
				}
				for range 5 {
					if ans := w.take(1); ans.Outcome == Admitted {
						log.add(w.id(), ans.slot, 1)
					}
				}
				w.move(25_000)
			}
			require.NoError(t, log.check(max(capA, capB), faster(rate(flip.refA), rate(flip.refB))))
		})
	}
}

// TestSmallAndOddRates: where a rate is small or odd, exactly as many are admitted as it says, spaced as it says.
func TestSmallAndOddRates(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		refill   string
		capacity int64
		every    int64 // one ask each
		span     time.Duration
		admitted int
	}{
		{"1/min", 1, 1_000_000, 5 * time.Minute, 5},
		{"5/min", 1, 1_000_000, 5 * time.Minute, 25},
		{"0.5/s", 1, 250_000, time.Minute, 30},
		{"3/s", 1, 1000, time.Second, 3},
		{"3/s", 3, 100_000, time.Minute, 182},
		{"1/s", 1, 1_000_000, time.Minute, 60},
		{"5/1.3s", 5, 10_000, 13 * time.Second, 54},
		{"10/s", 1, 100_000, 30 * time.Second, 300},
		{"1/d", 1, 3_600_000_000, 48 * time.Hour, 2},
	} {
		t.Run(row.refill, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, redistest.Shared(t), redistest.Name(t), tokenLimit(row.capacity, row.refill))
			defer w.close()
			admitted := 0
			for at := int64(0); at < row.span.Microseconds(); at += row.every {
				if w.take(1).Outcome == Admitted {
					admitted++
				}
				w.move(row.every)
			}
			require.Equal(t, row.admitted, admitted)
		})
	}
}
