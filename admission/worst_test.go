package admission_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluicehq/sluice/admission"
)

func TestWorstCase(t *testing.T) {
	t.Parallel()
	p := compile(t, `{"limits": [
		{"name": "bucket", "kind": "token_bucket", "capacity": 100, "refill": "100/min"},
		{"name": "slow", "kind": "token_bucket", "capacity": 1, "refill": "0.5/s"},
		{"name": "flight", "kind": "concurrency", "max": 8},
		{"name": "minute", "kind": "quota", "limit": 10, "every": "minute"},
		{"name": "hour", "kind": "quota", "limit": 10, "every": "hour"},
		{"name": "day", "kind": "quota", "limit": 1000, "every": "day"},
		{"name": "window", "kind": "sliding_window", "limit": 60, "window": "1m"},
		{"name": "log", "kind": "sliding_log", "limit": 5, "window": "1300ms"},
		{"name": "huge", "kind": "token_bucket", "capacity": 1, "refill": "1099511627776/1us"},
		{"name": "shadow", "kind": "quota", "limit": 10, "every": "hour", "shadow": true}]}`)
	type row struct {
		name      string
		s, min, h int64
	}
	var got []row
	for _, w := range admission.WorstCase(p.Limits()) {
		got = append(got, row{w.Limit.Name, w.PerSecond, w.PerMinute, w.PerHour})
	}
	const none = admission.Unbounded
	require.Equal(t, []row{
		{"bucket", 101, 200, 6100},
		{"slow", 1, 31, 1801},
		{"flight", none, none, none},
		{"minute", 20, 20, 610},
		{"hour", 20, 20, 20},
		{"day", 2000, 2000, 2000},
		{"window", 61, 120, 3660},
		{"log", 5, 5 * 47, 5 * 2770},
		{"huge", 1099511627776000001, 9223372036854775807, 9223372036854775807},
		{"shadow", none, none, none},
	}, got)
}
