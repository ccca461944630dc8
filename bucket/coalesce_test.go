package bucket

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// entry is an item of these tests; its answer is its own n.
type entry struct {
	n       int
	lane    string
	version int
	asks    int
	keys    int
	undoes  int // the n of the item that it undoes; 0: it is no undo item
}

// desk is the Exec of a Coalescer: each batch lies there until the test lets it go.
type desk struct {
	*Coalescer[entry, int]
	t       *testing.T
	batches chan []entry
	outcome chan error
	results sync.Map // n -> error of Do
}

// atDesk runs f where time stands still unless all wait, with item 0 already out. Afterwards nothing must be left, also
// no goroutine: the bubble would not end.
func atDesk(t *testing.T, change func(*CoalescerConfig[entry, int]), f func(t *testing.T, d *desk)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &desk{t: t, batches: make(chan []entry), outcome: make(chan error)}
		cfg := CoalescerConfig[entry, int]{
			Exec: func(batch []entry) ([]int, error) {
				d.batches <- slices.Clone(batch)
				return answersTo(batch), <-d.outcome
			},
			Lane:     func(e entry) string { return e.lane },
			Size:     func(e entry) (int, int) { return e.asks, e.keys },
			Together: func(first, e entry) bool { return first.version == e.version },
			Left:     undoOf,
		}
		if change != nil {
			change(&cfg)
		}
		d.Coalescer = NewCoalescer(cfg)
		d.ask(0, entry{})
		require.Equal(t, []int{0}, d.next())
		f(t, d)
		for d.running {
			d.end(nil)
			select {
			case <-d.batches:
			default:
			}
		}
		require.Zero(t, d.waiting+len(d.fresh)+len(d.undo))
		require.Zero(t, d.lanes.n+len(d.lanes.byName)+len(d.lanes.ring))
		require.NoError(t, d.result(0))
	})
}

func undoOf(e entry, answer int) (entry, bool) {
	return entry{n: -e.n, undoes: answer, version: e.version}, true
}

func answersTo(batch []entry) []int {
	answers := make([]int, len(batch))
	for i, e := range batch {
		answers[i] = e.n
	}
	return answers
}

// ask lets callers arrive one after the other; each waits for at most within.
func (d *desk) ask(within time.Duration, entries ...entry) {
	d.askCtx(d.t.Context(), within, entries...)
}

func (d *desk) askCtx(ctx context.Context, within time.Duration, entries ...entry) {
	for _, e := range entries {
		go func() {
			answer, err := d.Do(ctx, e, within)
			if err == nil && answer != e.n {
				err = errors.New("the answer to another item")
			}
			d.results.Store(e.n, err)
		}()
		synctest.Wait()
	}
}

// next returns the batch that is out, nil if none is.
func (d *desk) next() []int {
	select {
	case batch := <-d.batches:
		return answersTo(batch)
	default:
		return nil
	}
}

// end lets the batch end that is out, and waits until the one after it is out, if there is one.
func (d *desk) end(err error) {
	d.outcome <- err
	synctest.Wait()
}

// then lets one batch after the other end and sees what is in the next.
func (d *desk) then(wants ...[]int) {
	d.t.Helper()
	for _, want := range wants {
		d.end(nil)
		require.Equal(d.t, want, d.next())
	}
}

// result is what the caller of item n got.
func (d *desk) result(n int) error {
	d.t.Helper()
	v, ok := d.results.Load(n)
	require.True(d.t, ok, "the caller of item %d still waits", n)
	err, _ := v.(error)
	return err
}

// pass lets time pass and whoever waited for it act.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func span(from, to int, lane string) []entry {
	var entries []entry
	for n := from; n <= to; n++ {
		entries = append(entries, entry{n: n, lane: lane})
	}
	return entries
}

func numbers(from, to int) []int { return answersTo(span(from, to, "")) }

func TestCoalescerSendsAtOnceWhenIdle(t *testing.T) {
	atDesk(t, func(cfg *CoalescerConfig[entry, int]) { cfg.Lane, cfg.Size, cfg.Together = nil, nil, nil }, func(t *testing.T, d *desk) {
		start := time.Now()
		for n := 1; n < 4; n++ {
			d.end(nil)
			require.False(t, d.running)
			d.ask(time.Second, entry{n: n})
			require.Equal(t, []int{n}, d.next())
		}
		require.Zero(t, time.Since(start))
	})
}

func TestCoalescerKeepsTheOrderOfArrival(t *testing.T) {
	atDesk(t, nil, func(t *testing.T, d *desk) {
		d.ask(0, entry{n: 2, lane: "b"}, entry{n: 3, lane: "a"}, entry{n: 4, lane: "b"}, entry{n: 5, lane: "c"})
		d.then([]int{2, 3, 4, 5})
		d.end(nil)
		require.NoError(t, d.result(5))
	})
}

func TestCoalescerTakesLanesInTurn(t *testing.T) {
	atDesk(t, func(cfg *CoalescerConfig[entry, int]) { cfg.MaxAsks = 4 }, func(_ *testing.T, d *desk) {
		d.ask(0, span(1, 20, "flood")...)
		d.ask(0, entry{n: 100, lane: "small"})
		d.then([]int{1, 2, 3, 100}) // the newcomer, at its place
		d.ask(0, span(200, 202, "medium")...)
		d.ask(0, entry{n: 300, lane: "small"})
		d.then([]int{4, 5, 200, 300}, []int{6, 7, 201, 202}, numbers(8, 11), numbers(12, 15), numbers(16, 19), []int{20})
		for lane := range 10 { // all are served within one round
			d.ask(0, span(10*lane+1, 10*lane+3, strconv.Itoa(lane))...)
		}
		d.then([]int{1, 11, 21, 31}, []int{41, 51, 61, 71}, []int{2, 12, 81, 91}, []int{22, 32, 42, 52})
	})
}

func TestCoalescerBoundsABatch(t *testing.T) {
	atDesk(t, func(cfg *CoalescerConfig[entry, int]) { cfg.MaxAsks, cfg.MaxKeys = 10, 10 }, func(_ *testing.T, d *desk) {
		for range 2 {
			d.ask(
				0, entry{n: 2, asks: 6}, entry{n: 3, asks: 4}, entry{n: 4, keys: 6}, // 4 is at least one ask
				entry{n: 5, asks: 11}, entry{n: 6, keys: 11}, entry{n: 7}, entry{n: 8, keys: 7}, entry{n: 9, keys: 4},
			)
			d.then([]int{2, 3}, []int{4}, []int{5}, []int{6}, []int{7, 8}, []int{9})
		}
	})
}

func TestCoalescerSendsOnlyWhatGoesTogether(t *testing.T) {
	atDesk(t, func(cfg *CoalescerConfig[entry, int]) { cfg.MaxAsks = 4 }, func(_ *testing.T, d *desk) {
		d.ask(0, entry{n: 2, version: 1}, entry{n: 3, version: 2}, entry{n: 4, version: 1}, entry{n: 5, version: 2})
		d.then([]int{2, 4})
		// More than fits: lanes whose head may not join sit out and then come first.
		d.ask(
			0, entry{n: 6, version: 1, lane: "x"}, entry{n: 7, version: 2, lane: "y"}, entry{n: 8, version: 1, lane: "z"},
			entry{n: 9, version: 2, lane: "y"}, entry{n: 10, version: 2, lane: "y"},
		)
		d.then([]int{3, 5, 7, 9}, []int{6, 8}, []int{10})
	})
}

func TestCoalescerNeverSendsWhoLeftBefore(t *testing.T) {
	atDesk(t, nil, func(t *testing.T, d *desk) {
		ctx, cancel := context.WithCancel(t.Context())
		d.askCtx(ctx, 0, entry{n: 2})
		d.ask(10*time.Millisecond, entry{n: 3})
		d.ask(time.Hour, entry{n: 4})
		cancel()
		pass(0)
		require.ErrorIs(t, d.result(2), context.Canceled)
		pass(10 * time.Millisecond)
		require.ErrorIs(t, d.result(3), ErrTimeout)
		require.ErrorIs(t, d.result(3), ErrUnavailable)
		arrivals := d.seq
		d.askCtx(ctx, 0, entry{n: 5}) // left before it came
		require.ErrorIs(t, d.result(5), context.Canceled)
		require.Equal(t, arrivals, d.seq)
		d.then([]int{4})
	})
}

func TestCoalescerUndoesWhatNobodyWaitsFor(t *testing.T) {
	atDesk(t, nil, func(t *testing.T, d *desk) {
		ctx, cancel := context.WithCancel(t.Context())
		d.askCtx(ctx, 0, entry{n: 1})
		d.ask(10*time.Millisecond, entry{n: 2})
		d.ask(0, entry{n: 3})
		d.then([]int{1, 2, 3})
		pass(10 * time.Millisecond)
		cancel()
		pass(0)
		require.ErrorIs(t, d.result(1), context.Canceled)
		require.ErrorIs(t, d.result(2), ErrTimeout)
		d.ask(10*time.Millisecond, entry{n: 4})
		d.then([]int{-1, -2, 4}) // before all others
		pass(10 * time.Millisecond)
		d.then([]int{-4}) // by itself
	})
}

func TestCoalescerBoundsABatchOfUndoItems(t *testing.T) {
	atDesk(t, func(cfg *CoalescerConfig[entry, int]) {
		cfg.MaxAsks, cfg.MaxKeys = 3, 3
		cfg.Left = func(e entry, answer int) (entry, bool) {
			return entry{n: -e.n, undoes: answer, version: e.n / 3, keys: 2}, e.n != 6
		}
	}, func(_ *testing.T, d *desk) {
		d.ask(10*time.Millisecond, entry{n: 6}, entry{n: 1}, entry{n: 2}) // nothing to undo for 6
		d.then([]int{6, 1, 2})
		d.ask(0, entry{n: 3})
		pass(10 * time.Millisecond)
		d.then([]int{-1, 3}, []int{-2}) // two keys each
		d.ask(10*time.Millisecond, entry{n: 4}, entry{n: 5})
		d.then([]int{4, 5})
		d.ask(0, entry{n: 6}, entry{n: 7, version: 1}) // the version of what undoes 4 and 5
		pass(10 * time.Millisecond)
		d.then([]int{-4, 7}, []int{-5}, []int{6})
	})
}

func TestCoalescerRepeatsAnUndoOnlyIfNothingWasRun(t *testing.T) {
	atDesk(t, nil, func(t *testing.T, d *desk) {
		leave := func(n int) { // item n is executed and its caller leaves, so -n is out
			d.end(nil)
			d.ask(time.Millisecond, entry{n: n})
			require.Equal(t, []int{n}, d.next())
			pass(time.Millisecond)
			d.then([]int{-n})
		}
		leave(1)
		d.end(ErrNotRun)
		require.False(t, d.running, "a store in trouble is not asked for the sake of an undo item")
		for n := 2; n <= 3; n++ {
			d.ask(0, entry{n: n})
			require.Equal(t, []int{-1, n}, d.next())
			d.end(ErrNotRun)
			require.ErrorIs(t, d.result(n), ErrNotRun)
		}
		d.ask(0, entry{n: 4})
		require.Equal(t, []int{4}, d.next(), "three tries are enough")
		leave(5)
		d.end(ErrUnavailable) // perhaps done
		d.ask(0, entry{n: 6})
		require.Equal(t, []int{6}, d.next())
	})
}

func TestCoalescerGivesAnErrorToTheWholeBatch(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		exec func(batch []entry) ([]int, error)
		want string
	}{
		"error":            {func([]entry) ([]int, error) { return nil, errors.New("broken") }, "broken"},
		"panic":            {func([]entry) ([]int, error) { panic("oh") }, "coalescer: panic: oh"},
		"too few answers":  {func([]entry) ([]int, error) { return make([]int, 1), nil }, "coalescer: 1 answers to 2 items"},
		"too many answers": {func([]entry) ([]int, error) { return make([]int, 3), nil }, "coalescer: 3 answers to 2 items"},
	} {
		t.Run(name, func(t *testing.T) {
			atDesk(t, func(cfg *CoalescerConfig[entry, int]) {
				wait := cfg.Exec
				cfg.Exec = func(batch []entry) ([]int, error) {
					answers, err := wait(batch)
					if batch[0].n == 2 {
						return test.exec(batch)
					}
					return answers, err
				}
			}, func(t *testing.T, d *desk) {
				d.ask(0, entry{n: 2}, entry{n: 3})
				d.then([]int{2, 3})
				d.ask(0, entry{n: 4})
				d.then([]int{4})
				require.EqualError(t, d.result(2), test.want)
				require.EqualError(t, d.result(3), test.want)
				d.end(nil)
				require.NoError(t, d.result(4))
			})
		})
	}
}

// Callers that come and go while Exec hangs leave neither goroutines nor memory behind, nor do they keep others out.
func TestCoalescerSurvivesAHangingExec(t *testing.T) {
	const pending = 100
	atDesk(t, func(cfg *CoalescerConfig[entry, int]) { cfg.MaxAsks, cfg.MaxPending = 10, pending }, func(t *testing.T, d *desk) {
		d.ask(0, span(1, pending, "stay")...)
		d.ask(0, entry{n: 1001})
		require.ErrorIs(t, d.result(1001), ErrOverloaded)
		require.NotErrorIs(t, d.result(1001), ErrUnavailable)
		d.then(numbers(1, 10)) // 90 stay in their lane
		for cycle := range 5 {
			for range 50 {
				d.ask(10*time.Millisecond, span(2001, 2010, strconv.Itoa(cycle))...)
				pass(10 * time.Millisecond)
				require.ErrorIs(t, d.result(2001), ErrTimeout)
				require.LessOrEqual(t, len(d.fresh), 20)
				require.Equal(t, 90-10*cycle, d.waiting)
			}
			d.then(numbers(10*cycle+11, 10*cycle+20))
		}
	})
}

// Behind one that stays in a lane no more than a bounded number of those who left is kept.
func TestCoalescerBoundsWhatLeftInALane(t *testing.T) {
	const pending, asks = 100, 2
	atDesk(t, func(cfg *CoalescerConfig[entry, int]) { cfg.MaxAsks, cfg.MaxPending = asks, pending }, func(t *testing.T, d *desk) {
		d.ask(0, span(1, pending, "")...)
		d.then(numbers(1, asks))
		arrived := 0
		for batch := 1; batch < 30; batch++ {
			room := pending - d.waiting
			arrived += room
			d.ask(10*time.Millisecond, span(2001, 2000+room, "")...)
			d.then(numbers(asks*batch+1, asks*batch+asks))
			pass(10 * time.Millisecond)
			require.LessOrEqual(t, d.lanes.n, 2*pending+asks)
			require.Equal(t, pending-asks*(batch+1), d.waiting)
		}
		require.Greater(t, arrived, 4*pending)
	})
}

// The turns of a lane count what is sent, not what left unsent: who flooded and gave up is not punished for it.
func TestCoalescerForgetsAFloodThatLeft(t *testing.T) {
	atDesk(t, func(cfg *CoalescerConfig[entry, int]) { cfg.MaxAsks = 4 }, func(_ *testing.T, d *desk) {
		d.ask(0, span(1, 40, "steady")...)
		d.ask(10*time.Millisecond, span(101, 130, "flood")...)
		d.then([]int{1, 2, 101, 102})
		d.ask(0, entry{n: 300, lane: "flood"})
		pass(10 * time.Millisecond)
		d.then([]int{-101, -102, 3, 300})
	})
}

func TestCoalescerCloses(t *testing.T) {
	atDesk(t, nil, func(t *testing.T, d *desk) {
		d.ask(time.Millisecond, entry{n: 1})
		d.then([]int{1})
		pass(time.Millisecond)
		d.then([]int{-1})
		d.end(ErrNotRun)
		require.False(t, d.running)
		var closed atomic.Bool
		go func() {
			d.Close()
			closed.Store(true)
		}()
		synctest.Wait()
		require.Equal(t, []int{-1}, d.next(), "an undo item that is left is sent")
		d.ask(0, entry{n: 2})
		require.ErrorIs(t, d.result(2), ErrClosed)
		require.NotErrorIs(t, d.result(2), ErrUnavailable)
		d.end(ErrNotRun)
		require.Equal(t, []int{-1}, d.next())
		require.False(t, closed.Load())
		d.end(nil)
		require.True(t, closed.Load())
		d.Close()
	})
}

func TestCoalescerAnswersWhatItAcceptedBeforeItCloses(t *testing.T) {
	atDesk(t, nil, func(_ *testing.T, d *desk) {
		d.ask(0, entry{n: 2})
		go d.Close()
		synctest.Wait()
		d.then([]int{2})
	})
}
