package bucket

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"math/bits"
	"strconv"
	"strings"
	"time"
)

// Rate is N tokens per P microseconds in lowest terms. The zero value is no rate at all. It is written as text:
// "10/s", "1/min", "0.5/s", "1000/h", "2/d", "5/1.3s".
type Rate struct{ N, P int64 }

// Bounds of a Rate in lowest terms. They leave room for the arithmetic on credits, see MaxCredits.
const (
	maxRateN = int64(1) << 40
	maxRateP = int64(1) << 44
	// maxRateText keeps a hostile text from becoming a number of a million digits.
	maxRateText = 64
)

const rateExamples = `allowed is a number, a slash and s, min, h, d or a duration, such as "10/s", "0.5/s", "1/min" or "5/1.3s"`

// ParseRate reads a rate exactly: decimals never pass through a float. The number and the period must be positive; in
// lowest terms at most 2^40 tokens per at most 2^44 microseconds (203 days). Errors say what is allowed.
func ParseRate(text string) (Rate, error) {
	r, err := parseRate(text)
	if err != nil {
		if len(text) > maxRateText {
			text = text[:maxRateText] + "..."
		}
		return Rate{}, fmt.Errorf("rate %q: %w; %s", text, err, rateExamples)
	}
	return r, nil
}

func parseRate(text string) (Rate, error) {
	if len(text) > maxRateText {
		return Rate{}, errors.New("too long")
	}
	number, period, ok := strings.Cut(text, "/")
	if !ok {
		return Rate{}, errors.New("no period")
	}
	n, rest, err := decimal(number)
	if err != nil {
		return Rate{}, err
	}
	if rest != "" {
		return Rate{}, fmt.Errorf("%q is not a plain decimal number", number)
	}
	p, err := parsePeriod(period)
	if err != nil {
		return Rate{}, err
	}
	if n.Sign() == 0 || p.Sign() == 0 {
		return Rate{}, errors.New("zero: both the number and the period must be positive")
	}
	q := n.Quo(n, p) // tokens per microsecond; a big.Rat is always in lowest terms
	if !q.Num().IsInt64() || q.Num().Int64() > maxRateN {
		return Rate{}, errors.New("too high or too finely graded: in lowest terms more than 2^40 tokens")
	}
	if !q.Denom().IsInt64() || q.Denom().Int64() > maxRateP {
		return Rate{}, errors.New("too low or too finely graded: in lowest terms a period of more than 2^44 microseconds (203 days)")
	}
	return Rate{N: q.Num().Int64(), P: q.Denom().Int64()}, nil
}

// parsePeriod reads s, min, h, d or a Go duration as microseconds. time.ParseDuration would do the latter, but it
// rounds to nanoseconds by way of a float.
func parsePeriod(text string) (*big.Rat, error) {
	switch text {
	case "":
		return nil, errors.New("no period")
	case "s":
		return big.NewRat(1_000_000, 1), nil
	case "min":
		return big.NewRat(60_000_000, 1), nil
	case "h":
		return big.NewRat(3_600_000_000, 1), nil
	case "d":
		return big.NewRat(86_400_000_000, 1), nil
	case "m":
		return nil, errors.New(`the period "m" could be a minute or a month: write min`)
	}
	sum := new(big.Rat)
	for rest := text; rest != ""; {
		n, after, err := decimal(rest)
		if err != nil {
			return nil, fmt.Errorf("%q is no period", text)
		}
		unit := strings.IndexAny(after, "0123456789.")
		if unit < 0 {
			unit = len(after)
		}
		var us *big.Rat
		switch after[:unit] {
		case "ns":
			us = big.NewRat(1, 1000)
		case "us", "\u00b5s", "\u03bcs":
			us = big.NewRat(1, 1)
		case "ms":
			us = big.NewRat(1000, 1)
		case "s":
			us = big.NewRat(1_000_000, 1)
		case "m", "min":
			us = big.NewRat(60_000_000, 1)
		case "h":
			us = big.NewRat(3_600_000_000, 1)
		case "d":
			us = big.NewRat(86_400_000_000, 1)
		default:
			return nil, fmt.Errorf("%q is no period", text)
		}
		sum.Add(sum, us.Mul(us, n))
		rest = after[unit:]
	}
	return sum, nil
}

// decimal reads digits with an optional fraction from the start of text.
func decimal(text string) (n *big.Rat, rest string, err error) {
	end, dots, digits := 0, 0, 0
	for ; end < len(text); end++ {
		switch c := text[end]; {
		case c >= '0' && c <= '9':
			digits++
			continue
		case c == '.' && dots == 0:
			dots++
			continue
		}
		break
	}
	if digits == 0 || text[end-1] == '.' || text[0] == '.' {
		return nil, "", fmt.Errorf("%q is not a plain decimal number", text)
	}
	n, ok := new(big.Rat).SetString(text[:end])
	if !ok {
		return nil, "", fmt.Errorf("%q is not a plain decimal number", text)
	}
	return n, text[end:], nil
}

// reduced is n tokens per p microseconds in lowest terms; the zero Rate unless both are positive.
func reduced(n, p int64) Rate {
	if n <= 0 || p <= 0 {
		return Rate{}
	}
	a, b := n, p
	for b != 0 {
		a, b = b, a%b
	}
	return Rate{N: n / a, P: p / a}
}

// String writes the rate so that ParseRate reads the same one: per second where that takes no more than one decimal,
// else as a whole number per minute, hour or day, else per duration.
func (r Rate) String() string {
	if r.IsZero() {
		return "0/s"
	}
	if tenths, ok := r.per(10_000_000); ok {
		if tenths%10 == 0 {
			return strconv.FormatInt(tenths/10, 10) + "/s"
		}
		return fmt.Sprintf("%d.%d/s", tenths/10, tenths%10)
	}
	for _, u := range [...]struct {
		us   int64
		name string
	}{{60_000_000, "/min"}, {3_600_000_000, "/h"}, {86_400_000_000, "/d"}} {
		if n, ok := r.per(u.us); ok {
			return strconv.FormatInt(n, 10) + u.name
		}
	}
	return strconv.FormatInt(r.N, 10) + "/" + (time.Duration(r.P) * time.Microsecond).String()
}

// per is the number of tokens in so many microseconds, where it is whole.
func (r Rate) per(us int64) (int64, bool) {
	if us%r.P != 0 {
		return 0, false
	}
	hi, lo := bits.Mul64(uint64(r.N), uint64(us/r.P))
	return int64(lo), hi == 0 && lo <= math.MaxInt64
}

// PerSecond is the rate in tokens per second, for display: it is rounded.
func (r Rate) PerSecond() float64 {
	if r.IsZero() {
		return 0
	}
	return float64(r.N) * 1e6 / float64(r.P)
}

// Time is how long so many tokens take to refill, rounded up to a microsecond: at 3/s 1 token takes 333,334 us. It is
// Forever for a rate of zero and beyond what a Duration holds.
func (r Rate) Time(tokens int64) time.Duration {
	if tokens <= 0 {
		return 0
	}
	if r.IsZero() {
		return Forever
	}
	hi, lo := bits.Mul64(uint64(tokens), uint64(r.P))
	if hi >= uint64(r.N) {
		return Forever
	}
	us, rest := bits.Div64(hi, lo, uint64(r.N))
	if rest > 0 {
		us++
	}
	if us > uint64(Forever/time.Microsecond) {
		return Forever
	}
	return time.Duration(us) * time.Microsecond
}

// IsZero reports whether the rate is none at all.
func (r Rate) IsZero() bool { return r.N <= 0 || r.P <= 0 }

// MarshalText writes the rate as String does; the zero rate is empty.
func (r Rate) MarshalText() ([]byte, error) {
	if r.IsZero() {
		return nil, nil
	}
	return []byte(r.String()), nil
}

// UnmarshalText reads what ParseRate reads; an empty text is the zero rate.
func (r *Rate) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*r = Rate{}
		return nil
	}
	p, err := ParseRate(string(text))
	if err != nil {
		return err
	}
	*r = p
	return nil
}
