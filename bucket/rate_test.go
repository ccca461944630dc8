package bucket_test

import (
	"encoding/json"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/sluicehq/sluice/bucket"
)

func TestParseRate(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		text string
		want bucket.Rate
		back string
	}{
		{"10/s", bucket.Rate{N: 1, P: 100_000}, "10/s"},
		{"1/s", bucket.Rate{N: 1, P: 1_000_000}, "1/s"},
		{"3/s", bucket.Rate{N: 3, P: 1_000_000}, "3/s"},
		{"0.5/s", bucket.Rate{N: 1, P: 2_000_000}, "0.5/s"},
		{"0.1/s", bucket.Rate{N: 1, P: 10_000_000}, "0.1/s"},
		{"1/min", bucket.Rate{N: 1, P: 60_000_000}, "1/min"},
		{"7/min", bucket.Rate{N: 7, P: 60_000_000}, "7/min"},
		{"1000/h", bucket.Rate{N: 1, P: 3_600_000}, "1000/h"},
		{"2/d", bucket.Rate{N: 1, P: 43_200_000_000}, "2/d"},
		{"5/1.3s", bucket.Rate{N: 1, P: 260_000}, "1/260ms"},
		{"10/250ms", bucket.Rate{N: 1, P: 25_000}, "40/s"},
		{"1/1m30s", bucket.Rate{N: 1, P: 90_000_000}, "40/h"},
		{"3/7us", bucket.Rate{N: 3, P: 7}, "3/7µs"},
		{"1/1500ns", bucket.Rate{N: 2, P: 3}, "40000000/min"},
		{"1/3µs", bucket.Rate{N: 1, P: 3}, "20000000/min"},
		{"0.000001/s", bucket.Rate{N: 1, P: 1_000_000_000_000}, "1/277h46m40s"},
		{"60/min", bucket.Rate{N: 1, P: 1_000_000}, "1/s"},
		{"1.50/s", bucket.Rate{N: 3, P: 2_000_000}, "1.5/s"},
		{"1099511627776/1us", bucket.Rate{N: 1 << 40, P: 1}, "1099511627776/1µs"},
	} {
		t.Run(tc.text, func(t *testing.T) {
			t.Parallel()
			got, err := bucket.ParseRate(tc.text)
			require.NoError(t, err)
			require.Equal(t, tc.want, got)
			require.Equal(t, tc.back, got.String())
			again, err := bucket.ParseRate(tc.back)
			require.NoError(t, err)
			require.Equal(t, tc.want, again)
		})
	}
}

func TestParseRateRefuses(t *testing.T) {
	t.Parallel()
	for text, why := range map[string]string{
		"":                               "no period",
		"10":                             "no period",
		"10/":                            "no period",
		"/s":                             "not a plain decimal",
		"0/s":                            "zero",
		"0.0/s":                          "zero",
		"1/0s":                           "zero",
		"-1/s":                           "not a plain decimal",
		"+1/s":                           "not a plain decimal",
		"1/-1s":                          "no period",
		"NaN/s":                          "not a plain decimal",
		"Inf/s":                          "not a plain decimal",
		"1e3/s":                          "not a plain decimal",
		"1_000/s":                        "not a plain decimal",
		"0x10/s":                         "not a plain decimal",
		"1./s":                           "not a plain decimal",
		".5/s":                           "not a plain decimal",
		"1.2.3/s":                        "not a plain decimal",
		" 1/s":                           "not a plain decimal",
		"1/ s":                           "no period",
		"1/s/s":                          "no period",
		"1/m":                            "minute or a month",
		"1/ms":                           "no period",
		"1/month":                        "no period",
		"1/1":                            "no period",
		"1099511627777/1us":              "too high",
		"1/99999h":                       "too low",
		"1.23456789012345678/s":          "finely graded",
		"99999999999999999999/s":         "too high",
		strings.Repeat("9", 1000) + "/s": "too long",
	} {
		got, err := bucket.ParseRate(text)
		require.ErrorContains(t, err, why, "%q", text)
		require.ErrorContains(t, err, `"1/min"`, "%q: what is allowed", text)
		require.Less(t, len(err.Error()), 400)
		require.True(t, got.IsZero())
	}
}

func rates() *rapid.Generator[bucket.Rate] {
	return rapid.Custom(func(t *rapid.T) bucket.Rate {
		n := rapid.Int64Range(1, 1<<40).Draw(t, "n")
		if rapid.Bool().Draw(t, "small") {
			n = rapid.Int64Range(1, 1000).Draw(t, "n")
		}
		p := rapid.OneOf(rapid.Int64Range(1, 1<<44),
			rapid.SampledFrom([]int64{1, 1000, 1_000_000, 60_000_000, 3_600_000_000, 86_400_000_000})).Draw(t, "p")
		g := new(big.Int).GCD(nil, nil, big.NewInt(n), big.NewInt(p)).Int64()
		return bucket.Rate{N: n / g, P: p / g}
	})
}

func TestRateTextIsExact(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		r := rates().Draw(t, "rate")
		text, err := json.Marshal(r)
		require.NoError(t, err)
		var back bucket.Rate
		require.NoError(t, json.Unmarshal(text, &back))
		require.Equal(t, r, back, "%s", text)
	})
}

func TestRateTime(t *testing.T) {
	t.Parallel()
	require.Equal(t, 333_334*time.Microsecond, bucket.Rate{N: 3, P: 1_000_000}.Time(1))
	require.Equal(t, time.Second, bucket.Rate{N: 3, P: 1_000_000}.Time(3))
	require.Zero(t, bucket.Rate{N: 3, P: 1_000_000}.Time(0))
	require.Zero(t, bucket.Rate{N: 3, P: 1_000_000}.Time(-5))
	require.Equal(t, bucket.Forever, bucket.Rate{N: 1, P: 1 << 44}.Time(1<<52))
	require.Equal(t, bucket.Forever, bucket.Rate{}.Time(1))
	require.InDelta(t, 0.5, bucket.Rate{N: 1, P: 2_000_000}.PerSecond(), 0)
	require.Zero(t, bucket.Rate{}.PerSecond())
	rapid.Check(t, func(t *rapid.T) {
		r, tokens := rates().Draw(t, "rate"), rapid.Int64Range(1, 1<<52).Draw(t, "tokens")
		got := r.Time(tokens)
		// The least whole number of microseconds in which r refills so many.
		want := new(big.Int).Mul(big.NewInt(tokens), big.NewInt(r.P))
		want.Add(want, big.NewInt(r.N-1)).Quo(want, big.NewInt(r.N))
		if want.Cmp(big.NewInt(int64(bucket.Forever)/1000)) > 0 {
			require.Equal(t, bucket.Forever, got)
			return
		}
		require.Equal(t, want.Int64(), got.Microseconds())
		require.Zero(t, got%time.Microsecond)
	})
}

func TestFitCapacity(t *testing.T) {
	t.Parallel()
	require.NoError(t, bucket.Rate{N: 1, P: 1 << 44}.FitCapacity(1<<8))
	require.NoError(t, bucket.Rate{N: 1, P: 1}.FitCapacity(1<<52))
	err := bucket.Rate{N: 1, P: 1 << 44}.FitCapacity(1<<8 + 1)
	require.ErrorContains(t, err, "nearest rate that fits")
	require.ErrorContains(t, err, "capacity to at most 256")
	require.ErrorContains(t, bucket.Rate{N: 1, P: 1}.FitCapacity(1<<52+1), "more than any rate")
	// 1000003 tokens an hour, nearly 1000000/h, with a capacity of a million and a half.
	err = bucket.Rate{N: 1_000_003, P: 3_600_000_000}.FitCapacity(1_500_000)
	require.EqualError(t, err, `rate 1000003/h with capacity 1500000 cannot be counted exactly (capacity x 3600000000 microseconds is over 2^52); `+
		`the nearest rate that fits is "802595/48m9.333332s", or lower the capacity to at most 1250999`)
}

func TestFitCapacityNamesTheNearest(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		r := bucket.Rate{N: rapid.Int64Range(1, 400).Draw(t, "n"), P: rapid.Int64Range(1, 400).Draw(t, "p")}
		g := new(big.Int).GCD(nil, nil, big.NewInt(r.N), big.NewInt(r.P)).Int64()
		r = bucket.Rate{N: r.N / g, P: r.P / g}
		maxP := rapid.Int64Range(1, 60).Draw(t, "maxP")
		err := r.FitCapacity(bucket.MaxCredits / maxP)
		if r.P <= maxP {
			require.NoError(t, err)
			return
		}
		require.Error(t, err)
		_, after, _ := strings.Cut(err.Error(), `fits is "`)
		text, _, _ := strings.Cut(after, `"`)
		got, err := bucket.ParseRate(text)
		require.NoError(t, err)
		require.LessOrEqual(t, got.P, maxP)
		want := new(big.Rat).SetInt64(1 << 40)
		for p := int64(1); p <= maxP; p++ {
			for _, n := range []int64{r.N * p / r.P, r.N*p/r.P + 1} {
				if d := apart(r, bucket.Rate{N: n, P: p}); n > 0 && d.Cmp(want) < 0 {
					want = d
				}
			}
		}
		require.Zero(t, want.Cmp(apart(r, got)), "%v for %v, at most 1/%d", got, r, maxP)
	})
}

func apart(a, b bucket.Rate) *big.Rat {
	d := new(big.Rat).Sub(big.NewRat(a.N, a.P), big.NewRat(b.N, b.P))
	return d.Abs(d)
}

func FuzzParseRate(f *testing.F) {
	for _, s := range []string{
		"10/s", "1/min", "0.5/s", "1000/h", "2/d", "5/1.3s", "10/250ms", "3/7µs", "1/1500ns", "1/0s", "NaN/s", "1/1m1m", "1/.s",
		"99999999999999999999999999/1ns", "1/1h1", "/", "1//s", "0.000000000000000000000000000000000000001/s",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := bucket.ParseRate(text)
		if err != nil {
			require.True(t, r.IsZero())
			return
		}
		require.Positive(t, r.N)
		require.Positive(t, r.P)
		require.LessOrEqual(t, r.N, int64(1)<<40)
		require.LessOrEqual(t, r.P, int64(1)<<44)
		again, err := bucket.ParseRate(r.String())
		require.NoError(t, err)
		require.Equal(t, r, again)
	})
}
