package bucket

import (
	"context"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/sluicehq/sluice/internal/redistest"
)

// slotOf is the slot of a key as the specification of Redis Cluster has it: CRC16-XMODEM of what stands between the first
// brace and the next closing one.
func slotOf(key string) int {
	if _, rest, ok := strings.Cut(key, "{"); ok {
		if tag, _, ok := strings.Cut(rest, "}"); ok && tag != "" {
			key = tag
		}
	}
	crc := uint16(0)
	for i := range len(key) {
		crc ^= uint16(key[i]) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return int(crc) % 16384
}

func TestSlotOf(t *testing.T) {
	t.Parallel()
	require.Equal(t, 0x31C3, slotOf("123456789"))
	require.Equal(t, slotOf("user1000"), slotOf("{user1000}.following"))
	require.NotEqual(t, slotOf(""), slotOf("foo{}{bar}"))
}

// nasty draws names that break keys which are put together carelessly.
func nasty() *rapid.Generator[string] {
	return rapid.OneOf(
		rapid.SampledFrom([]string{
			"", "}x", "{", "}", "{}", "{x}", "a:b", "a", ":b", "s", "s:", "meta", "/", "a/c", "\n", "\r\n", "\x00", "a\x00", " ", "%",
			"*", "é", "e\u0301", "\u202e", strings.Repeat("a", 256), strings.Repeat("a", 255) + "b", strings.Repeat("}", 256),
		}),
		rapid.StringOfN(rapid.SampledFrom([]rune("{}:/\n\x00 as1")), 0, 6, -1),
		rapid.StringN(0, 64, 256),
	)
}

var keyOfState = regexp.MustCompile(`^s(:[a-z2-7]{26})?$`)

// TestKeysAreInjectiveOnOneSlot: whatever callers name, two tenants have two keys, which hold nothing of the names, and
// all keys of a dependency lie on its slot.
func TestKeysAreInjectiveOnOneSlot(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		dependency := rapid.StringMatching(`[a-z0-9][a-z0-9._-]{0,62}`).Draw(rt, "dependency")
		limit := tokenLimit(5, "1/s")
		limit.Per = PerTenant
		set := NewSet(1, []*Limit{limit}, "default")
		tenants := rapid.SliceOfNDistinct(nasty(), 1, 60, rapid.ID).Draw(rt, "tenants")
		batch := make([]*call, len(tenants))
		for i, tenant := range tenants {
			batch[i] = callOf(Ask{Set: set, Tenant: tenant})
		}
		keys, _ := newEncoder(Prefix(dependency)).encode(time.Now(), "1", batch, "", "")
		require.Len(rt, keys, 2+len(tenants), "a key for each tenant")
		seen := map[string]bool{}
		for _, k := range keys {
			require.False(rt, seen[k], k)
			seen[k] = true
			require.Equal(rt, slotOf(dependency), slotOf(k), k)
		}
		require.Equal(rt, MetaKey(dependency), keys[0])
		for _, k := range keys[1:] {
			require.Regexp(rt, keyOfState, strings.TrimPrefix(k, Prefix(dependency)))
		}
	})
}

// TestKeysInRedis: the same of every key that a batch really leaves in Redis, and no tenant sees what another took.
func TestKeysInRedis(t *testing.T) {
	t.Parallel()
	backends(t, func(t *testing.T, client redis.UniversalClient) {
		ctx, name, runs := context.Background(), redistest.Name(t), 0
		rapid.Check(t, func(rt *rapid.T) {
			if runs++; runs > 25 {
				return
			}
			w := newWorld(rt, client, name+"-"+strconv.Itoa(runs),
				&Limit{Name: "c", Kind: Concurrency, Per: PerTenantClass, Size: 1, Hold: time.Minute},
				&Limit{Name: "log", Kind: SlidingLog, Per: PerTenant, Unit: Requests, Size: 1, Window: time.Minute},
				&Limit{Name: "rate", Kind: TokenBucket, Per: PerTenant, Unit: Requests, Size: 1, Initial: 1, Refill: rate("1/d")})
			defer w.close()
			tenants := rapid.SliceOfNDistinct(nasty(), 1, 8, rapid.ID).Draw(rt, "tenants")
			for i, tenant := range tenants {
				a := Ask{
					Set: w.set("default"), Tenant: tenant, Class: "default", ID: w.id(), Key: "k" + strconv.Itoa(i), Fingerprint: "f",
					KeyTTL: time.Minute, SettleWithin: time.Minute,
				}
				require.Equal(rt, Admitted, w.ask(a).Outcome, "%q is alone", tenant)
			}
			keys, err := client.Keys(ctx, "*{"+w.name+"}*").Result()
			require.NoError(rt, err)
			// meta and its clock, s; for each tenant: hash, two sets of ends, grant, remembered answer.
			require.Len(rt, keys, 3+5*len(tenants))
			for _, k := range keys {
				require.Equal(rt, slotOf(w.name), slotOf(k), k)
				require.Regexp(rt, `^[a-z0-9{}:/._-]+$`, k)
			}
			for i, tenant := range tenants { // the grant's text holds tenant and class, whatever they look like
				got, class, err := w.store.Holder(ctx, w.name, "adm_"+strconv.Itoa(i+1))
				require.NoError(rt, err)
				require.Equal(rt, []string{tenant, "default"}, []string{got, class})
			}
		})
	})
}
