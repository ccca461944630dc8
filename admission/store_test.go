package admission_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluicehq/sluice/admission"
	"github.com/sluicehq/sluice/bucket"
	"github.com/sluicehq/sluice/internal/redistest"
)

// doc parses the JSON of a dependency.
func doc(tb testing.TB, text string) admission.DependencyDocument {
	tb.Helper()
	var d admission.DependencyDocument
	require.NoError(tb, json.Unmarshal([]byte(text), &d))
	return d
}

// buckets is a policy of token buckets with these names and capacities.
func buckets(tb testing.TB, namesAndCapacities ...any) admission.DependencyDocument {
	tb.Helper()
	text := ""
	for i := 0; i < len(namesAndCapacities); i += 2 {
		text += fmt.Sprintf(`,{"name":%q,"kind":"token_bucket","capacity":%d,"refill":"1/s"}`, namesAndCapacities[i], namesAndCapacities[i+1])
	}
	return doc(tb, `{"limits":[`+text[1:]+`]}`)
}

type stored struct {
	*admission.Store
	client       redis.UniversalClient
	name         string
	policy, meta string
}

func newStore(t *testing.T) *stored {
	t.Helper()
	client := redistest.Shared(t)
	name := redistest.Name(t)
	return &stored{admission.NewStore(client), client, name, "sluice:{" + name + "}:policy", "sluice:{" + name + "}:meta"}
}

func (s *stored) put(t *testing.T, d admission.DependencyDocument, known int64) (version int64, changed bool) {
	t.Helper()
	version, changed, err := s.Install(t.Context(), s.name, d, known)
	require.NoError(t, err)
	require.Equal(t, strconv.FormatInt(version, 10), s.client.HGet(t.Context(), s.meta, "v").Val())
	return version, changed
}

// birth is when the bucket was born, in microseconds, and at which level.
func (s *stored) birth(t *testing.T, bucketName string) (born, level int64) {
	t.Helper()
	text, err := s.client.HGet(t.Context(), s.meta, "b:td:"+bucketName).Result()
	require.NoError(t, err)
	_, err = fmt.Sscanf(text, "%d %d", &born, &level)
	require.NoError(t, err)
	return born, level
}

// versions are the numbers of the documents that are kept, ascending.
func (s *stored) versions(t *testing.T) (list []int64) {
	t.Helper()
	fields, err := s.client.HKeys(t.Context(), s.policy).Result()
	require.NoError(t, err)
	for _, f := range fields {
		if v, err := strconv.ParseInt(f, 10, 64); err == nil {
			list = append(list, v)
		}
	}
	slices.Sort(list)
	return list
}

func (s *stored) now(t *testing.T) int64 {
	t.Helper()
	now, err := s.client.Time(t.Context()).Result()
	require.NoError(t, err)
	return now.UnixMicro()
}

func TestInstallAndLoad(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	_, err := s.Load(t.Context(), s.name)
	require.ErrorIs(t, err, admission.ErrUnknownDependency)

	before := s.now(t)
	first, changed := s.put(t, buckets(t, "rate", 5), 0)
	require.True(t, changed)
	require.GreaterOrEqual(t, first, before, "the first number is the time")
	born, level := s.birth(t, "rate")
	require.Equal(t, bucket.MaxCredits, level, "a new dependency begins full, whatever a plan says that full is")
	require.GreaterOrEqual(t, born, before)

	p, err := s.Load(t.Context(), s.name)
	require.NoError(t, err)
	require.Equal(t, first, p.Version())
	require.Equal(t, int64(5), p.Limits()[0].Size)
	names, err := s.Names(t.Context())
	require.NoError(t, err)
	require.Contains(t, names, s.name)

	second, changed := s.put(t, buckets(t, "rate", 6), 0)
	require.True(t, changed)
	require.Greater(t, second, first)
	back, changed := s.put(t, buckets(t, "rate", 5), 0)
	require.True(t, changed, "a former document is a new version")
	require.Greater(t, back, second)

	versions := s.versions(t)
	require.Equal(t, []int64{first, second, back}, versions)
	for i, capacity := range []string{"5", "6", "5"} {
		number := strconv.FormatInt(versions[i], 10)
		require.Contains(t, s.client.HGet(t.Context(), s.policy, number).Val(), `"capacity":`+capacity)
		at, err := s.client.HGet(t.Context(), s.policy, "at:"+number).Int64()
		require.NoError(t, err)
		require.InDelta(t, s.now(t), at, 60e6)
	}
}

// TestInstallIsIdempotent: brokers that start with the same file make one version, however their calls interleave.
func TestInstallIsIdempotent(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	var wg sync.WaitGroup
	var mu sync.Mutex
	versions, changes := map[int64]bool{}, 0
	for range 16 {
		wg.Go(func() {
			version, changed, err := s.Install(t.Context(), s.name, buckets(t, "rate", 5, "other", 7), 0)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Error(err)
			}
			versions[version] = true
			if changed {
				changes++
			}
		})
	}
	wg.Wait()
	require.Len(t, versions, 1)
	require.Equal(t, 1, changes)
	written := s.client.HGetAll(t.Context(), s.meta).Val()
	s.put(t, buckets(t, "rate", 5, "other", 7), 1)
	require.Equal(t, written, s.client.HGetAll(t.Context(), s.meta).Val())
}

// TestBirths: a bucket keeps when it was born through every change; what is new in a policy that exists is empty.
func TestBirths(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.put(t, buckets(t, "rate", 5, "other", 7), 0)
	require.NoError(t, s.client.HSet(t.Context(), s.meta, "b:td:rate", "1000 3").Err())

	s.put(t, buckets(t, "rate", 50, "added", 9), 0)
	born, level := s.birth(t, "rate")
	require.Equal(t, []int64{1000, 3}, []int64{born, level}, "kept")
	born, level = s.birth(t, "added")
	require.Zero(t, level, "a limit that is added begins empty")
	require.InDelta(t, s.now(t), born, 5e6)
	require.False(t, s.client.HExists(t.Context(), s.meta, "b:td:other").Val(), "a limit that is gone is dropped")

	_, level = func() (int64, int64) { s.put(t, buckets(t, "renamed", 50), 0); return s.birth(t, "renamed") }()
	require.Zero(t, level, "who renames a limit gets no second capacity")

	require.NoError(t, s.client.HDel(t.Context(), s.meta, "b:td:renamed").Err())
	_, changed := s.put(t, buckets(t, "renamed", 50), 0)
	require.False(t, changed)
	_, level = s.birth(t, "renamed")
	require.Zero(t, level, "a birth that was lost is mended, empty")

	require.NoError(t, s.client.HSet(t.Context(), s.meta, "b:td:renamed", "rubbish").Err())
	s.put(t, buckets(t, "renamed", 50), 0)
	_, level = s.birth(t, "renamed")
	require.Zero(t, level)
}

func TestInitialLevel(t *testing.T) {
	t.Parallel()
	d := buckets(t, "rate", 50)
	d.Limits[0].Initial = new(int64(2))
	s := newStore(t)
	s.put(t, d, 0)
	_, level := s.birth(t, "rate")
	require.Equal(t, int64(2), level)

	lost := newStore(t)
	lost.name += "l"
	lost.policy, lost.meta = "sluice:{"+lost.name+"}:policy", "sluice:{"+lost.name+"}:meta"
	lost.put(t, d, 1)
	_, level = lost.birth(t, "rate")
	require.Zero(t, level, "Redis came back empty")
}

// TestBornOnTheDependencysTime: TIME stepped back under a dependency, whose own time did not.
func TestBornOnTheDependencysTime(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.put(t, buckets(t, "rate", 5), 0)
	clock := "7200000000 1000"
	require.NoError(t, s.client.HSet(t.Context(), s.meta, "clk", clock).Err())
	s.put(t, buckets(t, "rate", 5, "ahead", 5), 0)
	born, _ := s.birth(t, "ahead")
	require.InDelta(t, s.now(t)+7_200_000_000, born, 5e6)

	future := s.now(t) + 3_600_000_000_000
	require.NoError(t, s.client.HSet(t.Context(), s.meta, "clk", fmt.Sprintf("0 %d", future)).Err())
	s.put(t, buckets(t, "rate", 5, "later", 5), 0)
	born, _ = s.birth(t, "later")
	require.Equal(t, future, born)
	require.Equal(t, fmt.Sprintf("0 %d", future), s.client.HGet(t.Context(), s.meta, "clk").Val(), "only decisions write it")
}

// TestVersionsAreNeverReused: whatever is lost, a number never stands for another document than before.
func TestVersionsAreNeverReused(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(context.Context, *stored) error{
		"meta":            func(ctx context.Context, s *stored) error { return s.client.Del(ctx, s.meta).Err() },
		"policy":          func(ctx context.Context, s *stored) error { return s.client.Del(ctx, s.policy).Err() },
		"both":            func(ctx context.Context, s *stored) error { return s.client.Del(ctx, s.meta, s.policy).Err() },
		"version in meta": func(ctx context.Context, s *stored) error { return s.client.HDel(ctx, s.meta, "v").Err() },
		"highest":         func(ctx context.Context, s *stored) error { return s.client.HDel(ctx, s.policy, "max").Err() },
		"fingerprint":     func(ctx context.Context, s *stored) error { return s.client.HDel(ctx, s.policy, "sha").Err() },
		"older meta":      func(ctx context.Context, s *stored) error { return s.client.HIncrBy(ctx, s.meta, "v", -2).Err() },
		"older policy":    func(ctx context.Context, s *stored) error { return s.client.HIncrBy(ctx, s.policy, "max", -2).Err() },
	} {
		for _, same := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, same document %v", name, same), func(t *testing.T) {
				t.Parallel()
				s := newStore(t)
				var last int64
				for i := range 3 {
					last, _ = s.put(t, buckets(t, "rate", i+1), 0)
				}
				require.NoError(t, lose(t.Context(), s))
				capacity := 3
				if !same {
					capacity = 4
				}
				version, _, err := s.Install(t.Context(), s.name, buckets(t, "rate", capacity), 0)
				require.NoError(t, err)
				if same {
					require.GreaterOrEqual(t, version, last)
				} else {
					require.Greater(t, version, last)
				}
				p, err := s.Load(t.Context(), s.name)
				require.NoError(t, err)
				require.Equal(t, version, p.Version())
				require.Equal(t, int64(capacity), p.Limits()[0].Size)
				_, level := s.birth(t, "rate")
				switch name {
				case "both":
					require.Equal(t, bucket.MaxCredits, level)
				case "meta":
					require.Zero(t, level, "it was there before, so nobody gets a second capacity")
				default:
					require.Equal(t, bucket.MaxCredits, level, "births survive")
				}
				again, changed := s.put(t, buckets(t, "rate", capacity), 0)
				require.Equal(t, version, again)
				require.False(t, changed)
			})
		}
	}
}

func TestHistoryIsBounded(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	var given []int64
	for i := range 130 {
		version, _ := s.put(t, buckets(t, "rate", i+1), 0)
		given = append(given, version)
	}
	require.Equal(t, given[30:], s.versions(t))
	require.Equal(t, int64(202), s.client.HLen(t.Context(), s.policy).Val(), "nothing of older versions stays")
}

// TestCorruptDocumentIsItsOwnTrouble: CASES 44.
func TestCorruptDocumentIsItsOwnTrouble(t *testing.T) {
	t.Parallel()
	good, bad := newStore(t), newStore(t)
	good.put(t, buckets(t, "rate", 5), 0)
	version, _ := bad.put(t, buckets(t, "rate", 5), 0)
	field := strconv.FormatInt(version, 10)
	for text, why := range map[string]string{
		`{`:                                  "unexpected EOF",
		`{"limits":[],"brand_new":1}`:        "brand_new",
		`{"unlimited":true} {}`:              "more follows",
		`{"limits":[]}`:                      "missing or empty",
		`{"limits":[{"refill":"1/parsec"}]}`: "no period",
	} {
		require.NoError(t, bad.client.HSet(t.Context(), bad.policy, field, text).Err())
		_, err := bad.Load(t.Context(), bad.name)
		require.ErrorContains(t, err, why)
		require.ErrorContains(t, err, bad.name)
		require.NotErrorIs(t, err, bucket.ErrUnavailable)
		_, err = good.Load(t.Context(), good.name)
		require.NoError(t, err)
	}
	require.NoError(t, bad.client.HDel(t.Context(), bad.policy, field).Err())
	_, err := bad.Load(t.Context(), bad.name)
	require.ErrorIs(t, err, admission.ErrUnknownDependency)
	require.ErrorContains(t, err, "lost")
	mended, changed := bad.put(t, buckets(t, "rate", 5), 0)
	require.True(t, changed)
	require.Greater(t, mended, version)
	_, err = bad.Load(t.Context(), bad.name)
	require.NoError(t, err)
}

func TestInstallRefusesMistakes(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	var bad *admission.ValidationError
	_, _, err := s.Install(t.Context(), s.name, admission.DependencyDocument{}, 0)
	require.ErrorAs(t, err, &bad)
	_, _, err = s.Install(t.Context(), "a}b", buckets(t, "rate", 5), 0)
	require.ErrorAs(t, err, &bad)
	for _, name := range []string{"a}b", "{", "", "a:b", "a\nb"} {
		_, err = s.Load(t.Context(), name)
		require.ErrorIs(t, err, admission.ErrUnknownDependency)
	}
	require.Zero(t, s.client.Exists(t.Context(), s.policy, s.meta).Val())
}

// TestNamesMend: the list of names lies beside the policies and is mended by each Install, changed or not.
func TestNamesMend(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t)
	s := admission.NewStore(client)
	for _, name := range []string{"b", "a"} {
		_, _, err := s.Install(t.Context(), name, buckets(t, "rate", 5), 0)
		require.NoError(t, err)
	}
	require.NoError(t, client.Del(t.Context(), "sluice:dependencies").Err())
	_, _, err := s.Install(t.Context(), "a", buckets(t, "rate", 5), 0)
	require.NoError(t, err)
	names, err := s.Names(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"a"}, names)

	server.Kill()
	_, err = s.Names(t.Context())
	require.ErrorIs(t, err, bucket.ErrUnavailable)
	_, err = s.Load(t.Context(), "a")
	require.ErrorIs(t, err, bucket.ErrUnavailable)
	_, _, err = s.Install(t.Context(), "a", buckets(t, "rate", 5), 0)
	require.ErrorIs(t, err, bucket.ErrUnavailable)
}

func TestStoreOnACluster(t *testing.T) {
	t.Parallel()
	s := admission.NewStore(redistest.Cluster(t))
	for i := range 8 {
		name := fmt.Sprintf("d%d", i)
		version, changed, err := s.Install(t.Context(), name, buckets(t, "rate", 5), 0)
		require.NoError(t, err)
		require.True(t, changed)
		p, err := s.Load(t.Context(), name)
		require.NoError(t, err)
		require.Equal(t, version, p.Version())
	}
	names, err := s.Names(t.Context())
	require.NoError(t, err)
	require.Len(t, names, 8)
}
