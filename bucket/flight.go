package bucket

import (
	"sync/atomic"
	"time"
)

// flight is one call on its way, for which many callers wait.
type flight struct {
	begin   time.Time
	took    atomic.Int64 // 0 while it is under way
	counted atomic.Int64
}

// troubleEvery is how much longer a call must take to count as one more overrun.
const troubleEvery = 40 * time.Millisecond

// Overrun reports whether an ask that found the store unavailable is to be counted as an overrun. All who wait for one call
// are one overrun, however many they are, and one more for each 40 ms that the call takes: so a single slow call of a
// crowd does not look like a store that fails, and one that hangs is noticed within a fifth of a second.
func (l *Limiter) Overrun() bool {
	f := l.flight.Load()
	if f == nil {
		return true
	}
	took := time.Duration(f.took.Load())
	if took == 0 {
		took = time.Since(f.begin)
	}
	for most := 1 + int64(took/troubleEvery); ; {
		n := f.counted.Load()
		if n >= most {
			return false
		}
		if f.counted.CompareAndSwap(n, n+1) {
			return true
		}
	}
}
