package httpapi

import (
	"cmp"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/sluicehq/sluice/admission"
	"github.com/sluicehq/sluice/bucket"
)

// maxInteger is the largest integer of a structured field, RFC 9651 section 3.3.1.
const maxInteger = 999_999_999_999_999

// item is what a header says about one limit.
type item struct {
	state   *admission.LimitState
	refuses bool
	left    int64 // r
	seconds int64 // t; 0: left out
}

// items lists the limits that counted the ask, the one closest to exhaustion first: those that refuse by their wait, the
// others by the part that is left. Shadow limits are nobody's business but the operator's.
func items(to []item, d *admission.Decision) []item {
	refused := d.Outcome == admission.OutcomeRejected
	for i := range d.Limits {
		s := &d.Limits[i]
		if !s.Pressed || s.Limit.Shadow {
			continue
		}
		it := item{state: s, refuses: refused && s.Wait > 0 && s.Wait != bucket.Forever, left: min(max(0, s.Remaining), maxInteger)}
		it.count()
		to = append(to, it)
	}
	if len(to) > 1 {
		slices.SortStableFunc(to, closest)
	}
	return to
}

// count computes r and t. In the draft t says: within t seconds no more than r. It is not a promise that all is reset.
func (it *item) count() {
	l, s := it.state.Limit, it.state
	switch l.Kind {
	case bucket.Concurrency: // nobody knows when a grant ends
		if it.refuses {
			it.left = 0
		}
		return
	case bucket.Quota:
		it.seconds = ceilSeconds(s.Reset)
	case bucket.TokenBucket, bucket.SlidingWindow, bucket.SlidingLog:
		if it.refuses {
			it.left, it.seconds = 0, ceilSeconds(s.Wait)
			break
		}
		it.seconds = ceilSeconds(yield(l, it.left))
	}
	it.seconds = min(max(1, it.seconds), maxInteger)
}

func closest(a, b item) int {
	if a.refuses != b.refuses {
		if a.refuses {
			return -1
		}
		return 1
	}
	if a.refuses {
		return cmp.Compare(b.state.Wait, a.state.Wait)
	}
	return cmp.Compare(
		float64(a.left)*float64(b.state.Limit.Size),
		float64(b.left)*float64(a.state.Limit.Size))
}

// yield is the time in which a limit yields n units.
func yield(l *bucket.Limit, n int64) time.Duration {
	if l.Kind == bucket.TokenBucket {
		return l.Refill.Time(n)
	}
	// n is at most Size and Size x Window in milliseconds at most 2^52.
	return time.Duration(ceilDiv(n*l.Window.Milliseconds(), l.Size)) * time.Millisecond
}

// appendPolicy appends the item of a limit to RateLimit-Policy (draft-ietf-httpapi-ratelimit-headers-11, section 3):
// quota, window, unit. Limits' names need no escapes.
func appendPolicy(b []byte, it *item, window int64) []byte {
	l := it.state.Limit
	b = append(b, '"')
	b = append(b, l.Name...)
	b = append(b, `";q=`...)
	b = strconv.AppendInt(b, min(l.Size, maxInteger), 10)
	if l.Kind == bucket.Concurrency {
		return append(b, `;qu="concurrent-requests"`...)
	}
	b = append(b, ";w="...)
	b = strconv.AppendInt(b, min(max(1, window), maxInteger), 10)
	if u := unitOf(l); u != bucket.Requests {
		// Units of the parameter qu come from a registry, which has none for these; own parameters carry a prefix.
		b = append(b, `;sluice-unit="`...)
		b = append(b, u...)
		b = append(b, '"')
	}
	return b
}

// appendRateLimit appends the item of a limit to RateLimit (the draft's section 4): what is available, and for how long.
func appendRateLimit(b []byte, it *item) []byte {
	b = append(b, '"')
	b = append(b, it.state.Limit.Name...)
	b = append(b, `";r=`...)
	b = strconv.AppendInt(b, it.left, 10)
	if it.seconds > 0 {
		b = append(b, ";t="...)
		b = strconv.AppendInt(b, it.seconds, 10)
	}
	return b
}

// windows remembers how long the windows of quotas are: computing one takes a microsecond. Limits that share a slot take
// turns, which costs no more than not remembering.
type windows [64]atomic.Pointer[window]

type window struct {
	limit      *bucket.Limit
	start, end time.Time
	seconds    int64
}

// seconds is the length of the window of a limit.
func (w *windows) seconds(s *admission.LimitState, now time.Time) int64 {
	l := s.Limit
	switch l.Kind {
	case bucket.TokenBucket:
		return ceilSeconds(l.Refill.Time(l.Size))
	case bucket.SlidingWindow, bucket.SlidingLog:
		return ceilSeconds(l.Window)
	case bucket.Quota:
	case bucket.Concurrency:
		return 0
	}
	// The window in force is the one that ends when the state says, although the clock may just have stepped back.
	at := now.Add(s.Reset - 1)
	slot := &w[slotOf(l.Name)]
	if known := slot.Load(); known != nil && known.limit == l && !at.Before(known.start) && at.Before(known.end) {
		return known.seconds
	}
	start, end, _ := l.Every.Windows(at)
	length := ceilSeconds(end.Sub(start))
	slot.Store(&window{limit: l, start: start, end: end, seconds: length})
	return length
}

func slotOf(name string) int {
	h := uint32(2166136261) // FNV-1a
	for i := range len(name) {
		h = (h ^ uint32(name[i])) * 16777619
	}
	return int(h % 64)
}
