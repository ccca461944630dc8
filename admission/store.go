package admission

import (
	"bytes"
	"cmp"
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
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluicehq/sluice/bucket"
)

var (
	//go:embed install.lua
	installSource string
	//go:embed load.lua
	loadSource string
)

// keptVersions bounds the history of a policy.
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

// StoredVersion is one version of a policy as it was installed.
type StoredVersion struct {
	Version     int64
	InstalledAt time.Time // on the Redis clock
	Document    DependencyDocument
	// Err is why the document cannot be read; nil if it can.
	Err error
}

// Install makes the document the policy in force and says under which version; changed is false if it was in force
// already, whoever installed it. It may be repeated after any error. A document with mistakes is a *ValidationError.
//
// Token buckets that the policy had keep their level. Those of a dependency that is new to Redis begin at their
// initial level; all others, and all when the caller lost the dependency (decided on it before, and now it is gone),
// begin empty.
func (s *Store) Install(ctx context.Context, name string, doc DependencyDocument, lost bool) (version int64, changed bool, err error) {
	policy, err := Compile(name, 0, doc)
	if err != nil {
		return 0, false, err
	}
	text, err := doc.Canonical()
	if err != nil {
		return 0, false, err
	}
	sum := sha256.Sum256(text)
	args := []any{text, hex.EncodeToString(sum[:]), flag(lost), keptVersions}
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
		return 0, false, fmt.Errorf("install policy %s: %w", name, err)
	}
	pair, ok := reply.([]any)
	if !ok || len(pair) != 2 {
		return 0, false, fmt.Errorf("install policy %s: unexpected reply %v", name, reply)
	}
	version, okVersion := pair[0].(int64)
	installed, okInstalled := pair[1].(int64)
	if !okVersion || !okInstalled {
		return 0, false, fmt.Errorf("install policy %s: unexpected reply %v", name, reply)
	}
	if err := s.client.SAdd(ctx, namesKey, name).Err(); err != nil {
		return version, installed == 1, unavailable(ctx, "register dependency "+name, err)
	}
	return version, installed == 1, nil
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
	pair, ok := reply.([]any)
	if !ok || len(pair) != 2 {
		return nil, ErrUnknownDependency
	}
	number, _ := pair[0].(string)
	version, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		return nil, fmt.Errorf("load policy %s: version %.40q is no number", name, number)
	}
	text, ok := pair[1].(string)
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

// History lists the versions that are still known, the newest first, at most 100. ErrUnknownDependency if none is.
func (s *Store) History(ctx context.Context, name string) ([]StoredVersion, error) {
	if !(&checker{}).isName(name) {
		return nil, ErrUnknownDependency
	}
	fields, err := s.client.HGetAll(ctx, policyKeys(name)[0]).Result()
	if err != nil {
		return nil, unavailable(ctx, "read history of "+name, err)
	}
	var history []StoredVersion
	for field, text := range fields {
		version, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			continue
		}
		v := StoredVersion{Version: version}
		if us, err := strconv.ParseInt(fields["at:"+field], 10, 64); err == nil {
			v.InstalledAt = time.UnixMicro(us).UTC()
		}
		v.Document, v.Err = parseStored([]byte(text))
		history = append(history, v)
	}
	if len(history) == 0 {
		return nil, ErrUnknownDependency
	}
	slices.SortFunc(history, func(a, b StoredVersion) int { return cmp.Compare(b.Version, a.Version) })
	return history, nil
}

// policyKeys are the keys of the scripts, in their order. A dependency's name is plain enough to stand in a key.
func policyKeys(name string) []string {
	prefix := "sluice:{" + name + "}:"
	return []string{prefix + "policy", prefix + "meta", prefix + "s"}
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

// unavailable marks the error of a plain command, which may be repeated whatever it was.
func unavailable(ctx context.Context, doing string, err error) error {
	if errors.Is(err, context.Canceled) && ctx.Err() != nil || strings.HasPrefix(err.Error(), "WRONGTYPE") {
		return fmt.Errorf("%s: %w", doing, err)
	}
	return fmt.Errorf("%s: %w: %w", doing, bucket.ErrUnavailable, err)
}

func flag(b bool) int {
	if b {
		return 1
	}
	return 0
}
