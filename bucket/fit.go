package bucket

import (
	"fmt"
	"math/big"
)

// FitCapacity reports whether a bucket of the capacity can count this rate exactly: its content in credits, capacity x
// P, must not pass MaxCredits. If not, the error names the nearest rate that fits.
func (r Rate) FitCapacity(capacity int64) error {
	if capacity <= 0 || r.IsZero() || capacity <= MaxCredits/r.P {
		return nil
	}
	if capacity > MaxCredits {
		return fmt.Errorf("capacity %d is over 2^52, more than any rate can count exactly", capacity)
	}
	near := r.nearest(MaxCredits / capacity)
	return fmt.Errorf("rate %s with capacity %d cannot be counted exactly (capacity x %d microseconds is over 2^52); "+
		"the nearest rate that fits is %q, or lower the capacity to at most %d", r, capacity, r.P, near, MaxCredits/r.P)
}

// nearest is the positive rate closest to r whose P is at most maxP: the last convergent of the continued fraction of
// N/P that fits, or the semiconvergent after it, whichever is closer (Khinchin, Continued Fractions, section 6). A
// rate so low that 0 would be closest becomes 1 per maxP.
func (r Rate) nearest(maxP int64) Rate {
	if r.P <= maxP {
		return r
	}
	// h/k are the convergents; k grows until it would pass maxP. h stays below r.N because h/k approximates N/P with
	// a smaller k.
	h0, k0, h1, k1 := int64(0), int64(1), int64(1), int64(0)
	for n, p := r.N, r.P; p != 0; n, p = p, n%p {
		a := n / p
		if k1 != 0 && a > (maxP-k0)/k1 {
			a = (maxP - k0) / k1
			semi := Rate{N: a*h1 + h0, P: a*k1 + k0}
			return r.closer(Rate{N: h1, P: k1}, semi, maxP)
		}
		h0, k0, h1, k1 = h1, k1, a*h1+h0, a*k1+k0
	}
	return r
}

func (r Rate) closer(a, b Rate, maxP int64) Rate {
	best := a
	if a.N == 0 || (b.N != 0 && r.distance(b).Cmp(r.distance(a)) < 0) {
		best = b
	}
	if best.N == 0 {
		return Rate{N: 1, P: maxP}
	}
	return reduced(best.N, best.P)
}

func (r Rate) distance(o Rate) *big.Rat {
	d := new(big.Rat).Sub(big.NewRat(r.N, r.P), big.NewRat(o.N, o.P))
	return d.Abs(d)
}
