package bucket

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

// ErrNoGrant means that Redis holds no such grant, or no longer.
var ErrNoGrant = errors.New("no such grant")

// Holder reads whose grant it is: its tenant and class, from which the verbs on it are compiled.
func (s *Store) Holder(ctx context.Context, dependency, id string) (tenant, class string, err error) {
	raw, err := s.client.Get(ctx, Prefix(dependency)+"g:"+id).Result()
	switch {
	case errors.Is(err, redis.Nil):
		return "", "", ErrNoGrant
	case errors.Is(err, context.Canceled) && ctx.Err() != nil:
		return "", "", err
	case err != nil:
		return "", "", fmt.Errorf("read grant: %w: %w", classify(err), err)
	}
	_, rest, _ := strings.Cut(raw, "\n")
	class, tenant, ok := strings.Cut(rest, "\n")
	if !ok {
		return "", "", fmt.Errorf("read grant: %w: %q is no grant", ErrBroken, id)
	}
	return tenant, class, nil
}

// EvictionError means that Redis may drop keys when it is full, and with them counters and reservations.
type EvictionError struct{ Policy string }

func (e *EvictionError) Error() string {
	return "Redis has maxmemory-policy " + e.Policy + ", which drops counters when memory is full: set maxmemory-policy noeviction"
}

// CheckEviction is an *EvictionError where a Redis that holds state evicts keys. A server that tells its setting by neither
// CONFIG nor INFO, as some managed ones, passes.
func (s *Store) CheckEviction(ctx context.Context) error {
	if cluster, ok := s.client.(*redis.ClusterClient); ok {
		var mu sync.Mutex
		var found error
		err := cluster.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
			err := checkEviction(ctx, node)
			mu.Lock()
			defer mu.Unlock()
			if err != nil && found == nil {
				found = err
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("check eviction: %w: %w", classify(err), err)
		}
		return found
	}
	return checkEviction(ctx, s.client)
}

func checkEviction(ctx context.Context, c redis.Cmdable) error {
	policy := ""
	set, err := c.ConfigGet(ctx, "maxmemory-policy").Result()
	if err == nil {
		policy = set["maxmemory-policy"]
	} else if errors.Is(classify(err), ErrUnavailable) && !answered(err) {
		return fmt.Errorf("check eviction: %w: %w", classify(err), err)
	}
	if policy == "" {
		info, err := c.Info(ctx, "memory").Result()
		if err != nil && !answered(err) {
			return fmt.Errorf("check eviction: %w: %w", classify(err), err)
		}
		for line := range strings.Lines(info) {
			if v, ok := strings.CutPrefix(strings.TrimSpace(line), "maxmemory_policy:"); ok {
				policy = v
			}
		}
	}
	if policy == "" || policy == "noeviction" {
		return nil
	}
	return &EvictionError{Policy: policy}
}

// answered reports whether the server spoke: a command that it does not know or does not allow.
func answered(err error) bool {
	var said redis.Error
	return errors.As(err, &said) && !errors.Is(err, redis.Nil) &&
		!redis.HasErrorPrefix(err, "LOADING") && !redis.HasErrorPrefix(err, "MASTERDOWN") && !redis.HasErrorPrefix(err, "NOAUTH")
}
