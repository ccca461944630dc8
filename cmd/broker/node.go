package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/redis/go-redis/v9"

	"github.com/sluicehq/sluice/admission"
	"github.com/sluicehq/sluice/internal/httpapi"
	"github.com/sluicehq/sluice/internal/telemetry"
)

// nodeConfig is what a node is made of. The caller keeps ownership of the client; the listener becomes the node's.
type nodeConfig struct {
	listener        net.Listener
	client          redis.UniversalClient
	log             *slog.Logger
	maxInFlight     int // 0: as httpapi.Config has it
	drainDelay      time.Duration
	shutdownTimeout time.Duration
	dependencyLabel bool
	checkEvery      time.Duration    // 0: Redis is ours, nobody configures it
	file            *policyFile      // nil: policies are what Redis holds
	hangup          <-chan os.Signal // has the file read again; nil: nothing does
}

// node is one broker: a gate and the server in front of it.
type node struct {
	log        *slog.Logger
	gate       *admission.Gate
	server     *httpapi.Server
	file       *policyFile
	hangup     <-chan os.Signal
	timeout    time.Duration // after the drain delay
	delay      time.Duration
	checkEvery time.Duration
}

// newNode builds a broker; nothing is served yet. Close it whatever happens to it.
func newNode(c nodeConfig) *node {
	version, commit := build()
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	metrics := telemetry.New(registry, telemetry.Options{
		DropDependency: !c.dependencyLabel, Version: version, Commit: commit,
	})
	gate := admission.NewGate(admission.GateConfig{Client: c.client, Logger: c.log, Metrics: metrics})
	handler := httpapi.NewHandler(httpapi.Config{
		Gate: gate, Catalog: gate, Metrics: metrics, Gatherer: registry, Logger: c.log, MaxInFlight: c.maxInFlight,
	})
	return &node{
		log: c.log, gate: gate, file: c.file, hangup: c.hangup, timeout: c.shutdownTimeout, delay: c.drainDelay, checkEvery: c.checkEvery,
		server: httpapi.NewServer(c.listener, handler, httpapi.ServerConfig{DrainDelay: c.drainDelay, Logger: c.log}),
	}
}

// start puts the file's policies into force. While Redis is away it succeeds, and they follow.
func (n *node) start(ctx context.Context) error {
	if n.file == nil {
		return nil
	}
	return n.apply(ctx, n.file.doc)
}

// warm has the store load its scripts, which takes the embedded one longer than an ask may wait.
func (n *node) warm(ctx context.Context) {
	for name := range n.file.doc.Dependencies {
		_, _ = n.gate.Dependency(ctx, name) // a mere look; whoever asks meets its error, too
		return
	}
}

func (n *node) apply(ctx context.Context, doc *admission.Document) error {
	if err := warnUnenforced(n.log, doc); err != nil {
		return err
	}
	if err := n.gate.Apply(ctx, doc); err != nil {
		return fmt.Errorf("apply policies: %w", err)
	}
	return nil
}

// run serves until ctx is done, and then until what is being served was answered or the shutdown timeout has passed.
func (n *node) run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	var background sync.WaitGroup
	defer background.Wait()
	defer stop() // comes first
	if n.file != nil && n.file.watcher != nil {
		background.Go(func() { n.watch(ctx) })
	}
	if n.checkEvery > 0 {
		background.Go(func() { n.guardRedis(ctx, n.checkEvery) })
	}

	served := make(chan error, 1)
	go func() { served <- n.server.Serve() }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	n.log.InfoContext(ctx, "shutting down", slog.String("at_most", (n.delay+n.timeout).String()))
	within, cancel := context.WithTimeout(context.WithoutCancel(ctx), n.delay+n.timeout)
	defer cancel()
	err := n.server.Shutdown(within)
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("requests were cut off: not answered within --shutdown-timeout %s", n.timeout)
	}
	return errors.Join(err, <-served)
}

// watch applies the policy file whenever it changes, and on a hangup.
func (n *node) watch(ctx context.Context) {
	var reading sync.WaitGroup
	defer reading.Wait()
	reading.Go(func() {
		for {
			select {
			case <-n.hangup:
				n.file.watcher.Reload()
			case <-ctx.Done():
				return
			}
		}
	})
	err := n.file.watcher.Run(ctx, func(doc *admission.Document, err error) {
		if err == nil {
			err = n.apply(ctx, doc)
		}
		switch {
		case ctx.Err() != nil:
		case err != nil:
			n.log.ErrorContext(ctx, "policy file not applied; what was in force stays",
				slog.String("file", n.file.path), slog.String("error", err.Error()))
		default:
			n.log.InfoContext(ctx, "policy file applied", slog.String("file", n.file.path))
		}
	})
	if err != nil {
		n.log.ErrorContext(ctx, "policy file is not watched; restart to apply changes", slog.String("error", err.Error()))
	}
}

// close ends what the gate does in the background. The server must not be running.
func (n *node) close() { n.gate.Close() }

// listen takes the address that a flag gives.
func listen(ctx context.Context, flag, address string) (net.Listener, error) {
	if err := httpapi.RequireLoopback(address); err != nil {
		return nil, fmt.Errorf("--%s: %w", flag, err)
	}
	var c net.ListenConfig
	ln, err := c.Listen(ctx, "tcp", address)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("--%s: %s is taken by another program; stop it or choose another port", flag, address)
	case err != nil:
		return nil, fmt.Errorf("--%s: %w", flag, err)
	}
	return ln, nil
}
