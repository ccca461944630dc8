package bucket

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// ledger counts what a store was asked for and which callers know of it.
type ledger struct {
	mu                       sync.Mutex
	executed, undone, failed map[int]int
	largest                  int
}

func (l *ledger) exec(batch []entry) ([]int, error) {
	fail := rand.IntN(20) == 0
	time.Sleep(time.Duration(max(0, rand.IntN(300)-200)) * time.Microsecond) // a store that is slow at times
	l.mu.Lock()
	defer l.mu.Unlock()
	l.largest = max(l.largest, len(batch))
	for _, e := range batch {
		switch {
		case fail:
			l.failed[e.n]++
		case e.undoes != 0:
			l.undone[e.undoes]++
		default:
			l.executed[e.n]++
		}
	}
	if fail {
		return nil, ErrUnavailable // here: and nothing was done
	}
	return answersTo(batch), nil
}

// Every item is executed and answered, or executed and undone, or in a batch that failed, or never sent.
func TestCoalescerAccountsForEveryItem(t *testing.T) { //nolint:paralleltest // goleak looks at all goroutines
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	const callers, each = 200, 40
	l := &ledger{executed: map[int]int{}, undone: map[int]int{}, failed: map[int]int{}}
	c := NewCoalescer(CoalescerConfig[entry, int]{
		Exec:     l.exec,
		Lane:     func(e entry) string { return e.lane },
		Size:     func(e entry) (int, int) { return 1, e.keys },
		Together: func(first, e entry) bool { return first.version == e.version },
		Left:     undoOf,
		MaxAsks:  32, MaxKeys: 40, MaxPending: 150,
	})
	var mu sync.Mutex
	outcomes := map[int]error{}
	var wg sync.WaitGroup
	for caller := range callers {
		wg.Go(func() {
			for i := range each {
				n := caller*each + i + 1
				e := entry{n: n, lane: strconv.Itoa(caller % 7), version: rand.IntN(100) / 98, keys: rand.IntN(3)}
				ctx, cancel := context.WithCancel(t.Context())
				leaves := time.AfterFunc(time.Duration(rand.IntN(4000))*time.Microsecond, cancel)
				answer, err := c.Do(ctx, e, time.Duration(rand.IntN(4000)-2000)*time.Microsecond)
				leaves.Stop()
				cancel()
				if err == nil && answer != n {
					err = errors.New("the answer to another item")
				}
				mu.Lock()
				outcomes[n] = err
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	c.Close()

	count := map[string]int{}
	for n, err := range outcomes {
		switch {
		case err == nil:
			count["answered"]++
			require.Equal(t, 1, l.executed[n], "item %d", n)
			require.Zero(t, l.undone[n]+l.failed[-n], "item %d", n)
		case errors.Is(err, ErrOverloaded):
			count["overloaded"]++
			require.Zero(t, l.executed[n]+l.failed[n], "item %d", n)
		case errors.Is(err, ErrTimeout), errors.Is(err, context.Canceled):
			require.LessOrEqual(t, l.executed[n]+l.failed[n], 1, "item %d", n)
			require.Equal(t, l.executed[n], l.undone[n]+l.failed[-n], "item %d", n)
			count["left, sent "+strconv.Itoa(l.executed[n])]++
		default:
			count["failed"]++
			require.ErrorIs(t, err, ErrUnavailable)
			require.Equal(t, 1, l.failed[n], "item %d", n)
			require.Zero(t, l.executed[n]+l.undone[n], "item %d", n)
		}
	}
	require.Len(t, outcomes, callers*each)
	require.LessOrEqual(t, l.largest, 32)
	require.Len(t, count, 5, "%v", count) // each kind occurred
}

func BenchmarkCoalescer512(b *testing.B) {
	const callers = 512
	for _, lanes := range []int{1, callers} {
		b.Run(strconv.Itoa(lanes)+"-lanes", func(b *testing.B) {
			batches, answers := 0, make([]int, callers)
			c := NewCoalescer(CoalescerConfig[entry, int]{
				Exec: func(batch []entry) ([]int, error) {
					batches++
					return answers[:len(batch)], nil
				},
				Lane: func(e entry) string { return e.lane },
			})
			defer c.Close()
			b.ReportAllocs()
			b.ResetTimer()
			var wg sync.WaitGroup
			for caller := range callers {
				e := entry{lane: strconv.Itoa(caller % lanes)}
				wg.Go(func() {
					for range b.N/callers + 1 {
						if _, err := c.Do(b.Context(), e, 10*time.Second); err != nil {
							b.Error(err)
						}
					}
				})
			}
			wg.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "items/s")
			b.ReportMetric(float64(b.N)/float64(batches), "items/batch")
		})
	}
}
