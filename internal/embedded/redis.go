// Package embedded runs a Redis inside the process, for `broker dev` and for
// trying things out. It is no Redis to rely on: nothing is written to disk,
// memory has no limit, and one lock serves all clients. Sluice's scripts run on
// it as they do on a real server, and time-outs of keys follow the clock.
package embedded

import (
	"fmt"
	"sync"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Redis is a running in-process server.
type Redis struct {
	server *miniredis.Miniredis
	addr   string
	close  func()
}

// Start starts an empty server on a free loopback port. The caller closes it.
func Start() (*Redis, error) {
	server := miniredis.NewMiniRedis()
	// Unless told, miniredis never lets a key expire by itself.
	server.ClockTTL(true)
	if err := server.Start(); err != nil {
		return nil, fmt.Errorf("embedded redis: %w", err)
	}
	return &Redis{server: server, addr: server.Addr(), close: sync.OnceFunc(server.Close)}, nil
}

// Addr returns the host:port at which other processes reach the server.
func (r *Redis) Addr() string { return r.addr }

// Client returns a new client of the server. It belongs to the caller, who
// closes it before the server.
func (r *Redis) Client() *redis.Client {
	return redis.NewClient(&redis.Options{
		Addr: r.addr,
		// There is no maintenance to be notified of; asking costs a refused
		// command for each connection.
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
}

// Close stops the server, closes its connections and forgets its data. Closing
// again does nothing.
func (r *Redis) Close() { r.close() }
