package main

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/sluicehq/sluice/bucket"
)

// checkTimeout bounds one look at how Redis is configured.
const checkTimeout = 5 * time.Second

// checkRedis asks Redis how it is configured. An error is wrong configuration; that Redis is away is none.
func (n *node) checkRedis(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	err := n.gate.Check(ctx)
	if errors.Is(err, bucket.ErrUnavailable) || ctx.Err() != nil {
		return nil
	}
	return err
}

// guardRedis logs when the configuration becomes wrong, since a server may be configured anew or replaced by another.
// Readiness fails by itself then.
func (n *node) guardRedis(ctx context.Context, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	wrong := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		switch err := n.checkRedis(ctx); {
		case err != nil && !wrong:
			wrong = true
			n.log.ErrorContext(ctx, "Redis must not be used as it is configured", slog.String("error", err.Error()))
		case err == nil && wrong && ctx.Err() == nil:
			wrong = false
			n.log.InfoContext(ctx, "Redis is configured rightly again")
		}
	}
}
