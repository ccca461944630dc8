package config

import (
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// RedisClient makes a client of a URL:
//
//	redis://[user:password@]host[:port][/db]
//	redis+sentinel://[user:password@]host:port,host:port/mastername[?db=0]
//	redis+cluster://[user:password@]host:port,host:port
//
// rediss for redis, or ?tls=true, means TLS 1.2 or later; ports left out are 6379, of sentinels 26379. User and
// password are those of the data nodes; sentinels have sentinel_user and sentinel_password as parameters. pool_size
// (default 64) bounds the connections to each node. The caller closes the client. No connection is made yet.
//
// Errors never repeat any of the URL but its scheme and the names of parameters, since it may hold a password.
func RedisClient(text string) (redis.UniversalClient, error) {
	o, err := parseRedisURL(text)
	if err != nil {
		return nil, fmt.Errorf("redis url: %w", err)
	}
	return redis.NewUniversalClient(o), nil
}

const redisSchemes = "allowed are redis://, rediss://, redis+sentinel://, redis+cluster:// and the latter two with rediss"

// parseRedisURL does not use net/url for the whole, which refuses lists of hosts with ports and repeats the URL, with
// its password, in errors.
func parseRedisURL(text string) (*redis.UniversalOptions, error) {
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok {
		return nil, errors.New("has no scheme; " + redisSchemes)
	}
	rest, query, _ := strings.Cut(rest, "?")
	userinfo := ""
	if at := strings.LastIndex(rest, "@"); at >= 0 {
		userinfo, rest = rest[:at], rest[at+1:]
	}
	hosts, path, _ := strings.Cut(rest, "/")

	o := baseOptions()
	base, kind, _ := strings.Cut(scheme, "+")
	if (base != "redis" && base != "rediss") || (kind != "" && kind != "sentinel" && kind != "cluster") {
		return nil, errors.New("has an unknown scheme; " + redisSchemes)
	}
	port := "6379"
	if kind == "sentinel" {
		port = "26379"
	}
	var err error
	if o.Addrs, err = addresses(hosts, port); err != nil {
		return nil, err
	}
	if o.Username, o.Password, err = credentials(userinfo); err != nil {
		return nil, err
	}
	secure := base == "rediss"
	if err := parameters(o, query, kind, &secure); err != nil {
		return nil, err
	}
	if secure {
		o.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12} // the name to verify is that of each host
	}
	switch kind {
	case "":
		if len(o.Addrs) > 1 {
			return nil, errors.New("names several hosts; write redis+cluster:// or redis+sentinel://")
		}
		if path != "" {
			if o.DB, err = database(path); err != nil {
				return nil, err
			}
		}
	case "sentinel":
		if path == "" || strings.Contains(path, "/") {
			return nil, errors.New("needs the name of the master as its path: redis+sentinel://host:26379/mastername")
		}
		if o.MasterName, err = url.PathUnescape(path); err != nil {
			return nil, errors.New("has a name of the master that is not percent-encoded rightly")
		}
	case "cluster":
		if path != "" && path != "0" {
			return nil, errors.New("has a path; a cluster has database 0 only")
		}
		o.IsClusterMode = true
	}
	return o, nil
}

// baseOptions are chosen for a broker: few connections that live long, failures that are told quickly.
func baseOptions() *redis.UniversalOptions {
	return &redis.UniversalOptions{
		// Decisions share one call in flight per dependency, so connections are bounded by busy dependencies, and a
		// caller rather falls back than waits for one.
		PoolSize:     64,
		MinIdleConns: 2,
		PoolTimeout:  time.Second,
		// A dial that fails is tried again by the next call; repeated inside one, it would take seconds to be noticed.
		DialTimeout:        500 * time.Millisecond,
		DialerRetries:      1,
		DialerRetryTimeout: 10 * time.Millisecond,
		ReadTimeout:        time.Second,
		WriteTimeout:       time.Second,
		// Deadlines of callers must not cut connections: when Redis is merely slow, thousands would be dialled anew.
		ContextTimeoutEnabled: false,
		// Scripts are never repeated whatever stands here; reads are, once.
		MaxRetries:      1,
		MinRetryBackoff: 8 * time.Millisecond,
		MaxRetryBackoff: 64 * time.Millisecond,
		MaxRedirects:    5,
		MaintNotificationsConfig: &maintnotifications.Config{
			Mode: maintnotifications.ModeDisabled, // Redis Enterprise only
		},
	}
}

func addresses(hosts, port string) ([]string, error) {
	var addrs []string
	for h := range strings.SplitSeq(hosts, ",") {
		name, p := h, port
		if strings.HasPrefix(h, "[") && strings.HasSuffix(h, "]") {
			name = h[1 : len(h)-1]
		} else if strings.Contains(h, ":") {
			var err error
			if name, p, err = net.SplitHostPort(h); err != nil {
				return nil, errors.New("has a host that is not host:port; IPv6 stands in brackets, and @, / and ? in a password are percent-encoded")
			}
		}
		if n, err := strconv.ParseUint(p, 10, 16); err != nil || n == 0 {
			return nil, errors.New("has a port that is no number from 1 to 65535; @, / and ? in a password are percent-encoded")
		}
		if name == "" {
			return nil, errors.New("has an empty host")
		}
		addrs = append(addrs, net.JoinHostPort(name, p))
	}
	return addrs, nil
}

func credentials(userinfo string) (user, password string, err error) {
	user, password, _ = strings.Cut(userinfo, ":")
	user, errUser := url.PathUnescape(user)
	password, errPassword := url.PathUnescape(password)
	if errUser != nil || errPassword != nil {
		return "", "", errors.New("has a user or password that is not percent-encoded rightly")
	}
	if user != "" && password == "" {
		return "", "", errors.New("has a user without a password; a password alone is written :password@")
	}
	return user, password, nil
}

func parameters(o *redis.UniversalOptions, query, kind string, secure *bool) error {
	values, err := url.ParseQuery(query)
	if err != nil {
		return errors.New("has parameters that are not percent-encoded rightly")
	}
	allowed := "tls, pool_size"
	switch kind {
	case "":
		allowed = "db, " + allowed
	case "sentinel":
		allowed = "db, sentinel_user, sentinel_password, " + allowed
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		value := values.Get(name)
		known := slices.Contains(strings.Split(allowed, ", "), name)
		switch {
		case !known:
			return fmt.Errorf("has an unknown parameter %.40q; allowed are %s", name, allowed)
		case len(values[name]) > 1:
			return fmt.Errorf("has parameter %s twice", name)
		}
		switch name {
		case "db":
			if o.DB, err = database(value); err != nil {
				return err
			}
		case "tls":
			on, err := strconv.ParseBool(value)
			if err != nil {
				return errors.New("has a tls that is neither true nor false")
			}
			*secure = *secure || on
		case "pool_size":
			if o.PoolSize, err = strconv.Atoi(value); err != nil || o.PoolSize < 1 || o.PoolSize > 10_000 {
				return errors.New("has a pool_size that is no number from 1 to 10000")
			}
			o.MinIdleConns = min(o.MinIdleConns, o.PoolSize)
		case "sentinel_user":
			o.SentinelUsername = value
		case "sentinel_password":
			o.SentinelPassword = value
		}
	}
	return nil
}

func database(text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n > 1<<20 {
		return 0, errors.New("has a database that is no number from 0")
	}
	return n, nil
}

// RedisTarget is a URL without user, password and parameters: what a log may say.
func RedisTarget(text string) string {
	o, err := parseRedisURL(text)
	if err != nil {
		return "an invalid URL"
	}
	scheme, _, _ := strings.Cut(text, "://")
	target := scheme + "://" + strings.Join(o.Addrs, ",")
	switch {
	case o.MasterName != "":
		target += "/" + url.PathEscape(o.MasterName)
	case o.DB != 0:
		target += "/" + strconv.Itoa(o.DB)
	}
	return target
}
