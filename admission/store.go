package admission

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/sluicehq/sluice/bucket"
)

var (
	//go:embed install.lua
	installSource string
	//go:embed load.lua
	loadSource string
)

// keptVersions is how many versions of a policy are kept for who looks into Redis.
const keptVersions = 100

// namesKey is the set of all dependencies. It lies on a slot of its own, so that it is written beside the policies and
// may lag behind them; every Install mends it.
const namesKey = "sluice:dependencies"

// Store keeps policies in Redis, each dependency's on its own slot: the document of each version, which of them is in
// force, and when its token buckets were born.
//
// Errors are bucket.ErrUnavailable where Redis did not serve, as bucket.Script.Run has them.
type Store struct {
	client  redis.UniversalClient
	install *bucket.Script
	load    *bucket.Script
}

// NewStore keeps policies behind the client, which stays the caller's to close.
func NewStore(client redis.UniversalClient) *Store {
	return &Store{
		client:  client,
		install: bucket.NewScript("install", installSource),
		load:    bucket.NewScript("load policy", loadSource),
	}
}

// Install makes the document the policy in force and says under which version; changed is false if it was in force
// already, whoever installed it. It may be repeated after any error. A document with mistakes is a *ValidationError.
//
// known is the last version that the caller decided the dependency by, 0 for none. Token buckets that the policy had keep
// their level. Those of a dependency that is new to Redis, and of which the caller knew no version, begin at their initial
// level; all others begin empty.
func (s *Store) Install(ctx context.Context, name string, doc DependencyDocument, known int64) (version int64, changed bool, err error) {
	version, result, err := s.put(ctx, name, doc, known, 0)
	return version, result == putInstalled, err
}

// Restore brings back a policy by which the caller decided and which Redis has lost, unless one that is no older is in
// force. It returns the policy that is in force then, and whether this call brought it back.
func (s *Store) Restore(ctx context.Context, p *Policy) (now *Policy, changed bool, err error) {
	version, result, err := s.put(ctx, p.name, p.written, p.version, p.origin)
	if err != nil {
		return nil, false, err
	}
	if result == putLater {
		if now, err = s.Load(ctx, p.name); err != nil {
			return nil, false, err
		}
		_, _, err = s.put(ctx, p.name, now.written, now.version, 0) // where births were lost, so are back
		return now, false, err
	}
	if now, err = Compile(p.name, version, p.written); err != nil {
		return nil, false, err
	}
	now.origin = p.origin
	return now, result == putInstalled, nil
}

// What came of a put.
const (
	putLater     = int64(-1) // a version that is no older than the one to bring back is in force
	putInstalled = int64(1)
)

// put runs the install script; origin is 0 unless a version is brought back.
func (s *Store) put(ctx context.Context, name string, doc DependencyDocument, known, origin int64) (version, result int64, err error) {
	policy, err := Compile(name, 0, doc)
	if err != nil {
		return 0, 0, err
	}
	text, err := doc.Canonical()
	if err != nil {
		return 0, 0, err
	}
	sum := sha256.Sum256(text)
	args := []any{text, hex.EncodeToString(sum[:]), known, origin, keptVersions}
	for i, l := range policy.Limits() {
		if l.Kind != bucket.TokenBucket {
			continue
		}
		level := l.Initial
		if doc.Limits[i].Initial == nil {
			level = bucket.MaxCredits // full, also where a plan says that it holds more
		}
		args = append(args, l.Identity(), level)
	}
	reply, err := s.install.Run(ctx, s.client, policyKeys(name), args)
	if err != nil {
		return 0, 0, fmt.Errorf("install policy %s: %w", name, err)
	}
	pair, ok := reply.([]any)
	if !ok || len(pair) != 2 {
		return 0, 0, fmt.Errorf("install policy %s: unexpected reply %v", name, reply)
	}
	version, okVersion := pair[0].(int64)
	result, okResult := pair[1].(int64)
	if !okVersion || !okResult {
		return 0, 0, fmt.Errorf("install policy %s: unexpected reply %v", name, reply)
	}
	// The list of names may lag behind: who looks after it puts back what is not in it.
	_ = s.client.SAdd(ctx, namesKey, name).Err()
	return version, result, nil
}

// Load reads the policy in force. ErrUnknownDependency where there is none, or its document was lost; any other error
// concerns this dependency alone.
func (s *Store) Load(ctx context.Context, name string) (*Policy, error) {
	if !(&checker{}).isName(name) {
		return nil, ErrUnknownDependency
	}
	reply, err := s.load.Run(ctx, s.client, policyKeys(name), nil)
	if err != nil {
		return nil, fmt.Errorf("load policy %s: %w", name, err)
	}
	parts, ok := reply.([]any)
	if !ok || len(parts) != 3 {
		return nil, ErrUnknownDependency
	}
	number, _ := parts[0].(string)
	version, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		return nil, fmt.Errorf("load policy %s: version %.40q is no number", name, number)
	}
	text, ok := parts[1].(string)
	if !ok {
		return nil, fmt.Errorf("%w: the document of version %d of %s is lost", ErrUnknownDependency, version, name)
	}
	doc, err := parseStored([]byte(text))
	if err != nil {
		return nil, fmt.Errorf("load policy %s version %d: %w", name, version, err)
	}
	p, err := Compile(name, version, doc)
	if err != nil {
		return nil, fmt.Errorf("load policy %s version %d: %w", name, version, err)
	}
	if of, ok := parts[2].(string); ok {
		if p.origin, err = strconv.ParseInt(of, 10, 64); err != nil {
			return nil, fmt.Errorf("load policy %s version %d: what it brought back is %.40q and no number", name, version, of)
		}
	}
	return p, nil
}

// Names lists the dependencies that were ever installed, sorted.
func (s *Store) Names(ctx context.Context) ([]string, error) {
	names, err := s.client.SMembers(ctx, namesKey).Result()
	if err != nil {
		return nil, unavailable(ctx, "list dependencies", err)
	}
	slices.Sort(names)
	return names, nil
}

// policyKeys are the keys of the scripts, in their order. A dependency's name is plain enough to stand in a key.
func policyKeys(name string) []string {
	return []string{bucket.Prefix(name) + "policy", bucket.MetaKey(name), bucket.StateKey(name)}
}

// parseStored reads a stored document. What a newer release wrote and this one does not know is an error: a limit
// that is understood by half is worse than none.
func parseStored(text []byte) (DependencyDocument, error) {
	var doc DependencyDocument
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&doc); err != nil {
		return DependencyDocument{}, fmt.Errorf("stored document: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return DependencyDocument{}, errors.New("stored document: more follows its end")
	}
	return doc, nil
}

// sameDocument reports whether both say the same.
func sameDocument(a, b DependencyDocument) bool {
	one, err := a.Canonical()
	if err != nil {
		return false
	}
	other, err := b.Canonical()
	return err == nil && bytes.Equal(one, other)
}

// unavailable marks the error of a plain command, which may be repeated whatever it was.
func unavailable(ctx context.Context, doing string, err error) error {
	if errors.Is(err, context.Canceled) && ctx.Err() != nil || strings.HasPrefix(err.Error(), "WRONGTYPE") {
		return fmt.Errorf("%s: %w", doing, err)
	}
	return fmt.Errorf("%s: %w: %w", doing, bucket.ErrUnavailable, err)
}
