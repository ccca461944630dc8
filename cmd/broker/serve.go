package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluicehq/sluice/internal/config"
)

const serveHelp = `Serve answers asks over HTTP; all state is in Redis, so any number of brokers share it.

Redis is 7.0 or newer and never evicts (maxmemory-policy noeviction); a broker whose Redis is away starts all the same,
is not ready, and recovers by itself. The policy file is read again when it changes and on SIGHUP; a file with mistakes
changes nothing. On SIGTERM readiness fails first, then what is being served is answered; a second signal ends at once.

Every flag has an environment variable; the flag goes before it.`

func (p *program) serveCommand() *cobra.Command {
	settings, err := config.ReadServe(p.environ)
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve the gate, with its state in Redis",
		Long:  serveHelp,
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err != nil {
				return err
			}
			return p.serve(cmd.Context(), settings)
		},
	}
	settings.RegisterFlags(cmd.Flags())
	return cmd
}

func (p *program) serve(ctx context.Context, s config.Serve) error {
	if err := s.Validate(); err != nil {
		return err
	}
	log := slog.New(slog.NewJSONHandler(p.stderr, &slog.HandlerOptions{Level: s.LogLevel}))
	var file *policyFile
	hangup := make(chan os.Signal, 1)
	if s.Policies != "" {
		signal.Notify(hangup, syscall.SIGHUP) // from here on: it would end the process
		defer signal.Stop(hangup)
		var err error
		if file, err = openPolicies(s.Policies); err != nil {
			return err
		}
	}
	client, err := config.RedisClient(s.RedisURL)
	if err != nil {
		return err
	}
	defer client.Close()
	ln, err := listen(ctx, "listen", s.Listen)
	if err != nil {
		return err
	}
	defer ln.Close() // the server has closed it, unless it never came so far
	n := newNode(nodeConfig{
		listener: ln, client: client, log: log, maxInFlight: s.MaxInFlight,
		drainDelay: s.DrainDelay, shutdownTimeout: s.ShutdownTimeout, dependencyLabel: s.DependencyLabel,
		checkEvery: cmp.Or(p.checkEvery, 10*time.Second), file: file, hangup: hangup,
	})
	defer n.close()
	if err := n.checkRedis(ctx); err != nil {
		return fmt.Errorf("redis at %s: %w", config.RedisTarget(s.RedisURL), err)
	}
	if err := n.start(ctx); err != nil {
		return err
	}
	version, commit := build()
	log.InfoContext(ctx, "serving", slog.String("address", ln.Addr().String()), slog.String("redis", config.RedisTarget(s.RedisURL)),
		slog.String("policies", s.Policies), slog.String("version", version), slog.String("commit", commit))
	if p.listening != nil {
		p.listening(ln.Addr(), nil)
	}
	if err := n.run(ctx); err != nil {
		return err
	}
	log.InfoContext(ctx, "stopped")
	return nil
}
