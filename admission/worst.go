package admission

import (
	"math"
	"math/bits"
	"time"

	"github.com/sluicehq/sluice/bucket"
)

// Worst is how much a limit lets through at most, in its unit, whenever the interval begins. A field is Unbounded
// where the limit sets no such bound.
type Worst struct {
	Limit     *bucket.Limit
	PerSecond int64
	PerMinute int64
	PerHour   int64
}

// Unbounded is how much a limit lets through that bounds something else, as concurrency does.
const Unbounded = int64(-1)

// WorstCase says for each limit how much it lets through at most in any second, minute and hour: a token bucket of
// capacity 100 and refill 100/min lets 200 through in its first minute, and a quota twice its size where an interval
// covers the end of one window and the beginning of the next. Shadow limits are Unbounded, as is a bucket that goes into debt.
func WorstCase(limits []*bucket.Limit) []Worst {
	out := make([]Worst, len(limits))
	for i, l := range limits {
		out[i] = Worst{
			Limit:     l,
			PerSecond: worst(l, time.Second),
			PerMinute: worst(l, time.Minute),
			PerHour:   worst(l, time.Hour),
		}
	}
	return out
}

func worst(l *bucket.Limit, t time.Duration) int64 {
	if l.Shadow || l.Debt {
		return Unbounded
	}
	switch l.Kind {
	case bucket.TokenBucket:
		return plus(l.Size, times(l.Refill.N, t.Microseconds(), l.Refill.P))
	case bucket.Quota:
		return times(l.Size, windowsTouched(l.Every.Every, t), 1)
	case bucket.SlidingWindow:
		// All charges of the older counter may lie at its end while it is weighted as if they were spread evenly: the
		// limit at once, and then as fast again as the weight falls.
		return plus(l.Size, times(l.Size, int64(t), int64(l.Window)))
	case bucket.SlidingLog:
		return times(l.Size, int64((t-1)/l.Window)+1, 1)
	case bucket.Concurrency:
	}
	return Unbounded
}

// windowsTouched is how many calendar windows an interval of up to an hour can lie in, be it ever so unlucky. The one
// window of 30 minutes that Lord Howe Island has in spring is left aside.
func windowsTouched(every bucket.Period, t time.Duration) int64 {
	if every == bucket.Minute {
		return int64((t+time.Minute-1)/time.Minute) + 1
	}
	return 2
}

func plus(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// times is a x b / c rounded down, at most MaxInt64.
func times(a, b, c int64) int64 {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	if hi >= uint64(c) {
		return math.MaxInt64
	}
	q, _ := bits.Div64(hi, lo, uint64(c))
	return int64(min(q, math.MaxInt64))
}
