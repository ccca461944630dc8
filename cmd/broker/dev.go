package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluicehq/sluice/internal/config"
	"github.com/sluicehq/sluice/internal/embedded"
	"github.com/sluicehq/sluice/internal/partner"
)

//go:embed dev.yaml
var devPolicies []byte

const devHelp = `Dev needs nothing but this program: Redis runs inside it, policies are built in, and a fake partner enforces a strict
limit of its own and counts the calls that break it. It listens on loopback only.

NOTHING SURVIVES IT: when it ends, all state is gone. It is for trying things out, never for production.

Every flag has an environment variable; the flag goes before it.`

func (p *program) devCommand() *cobra.Command {
	settings, err := config.ReadDev(p.environ)
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Try it out: everything in this process, nothing survives it",
		Long:  devHelp,
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err != nil {
				return err
			}
			return p.dev(cmd.Context(), settings)
		},
	}
	settings.RegisterFlags(cmd.Flags())
	return cmd
}

func (p *program) dev(ctx context.Context, s config.Dev) error {
	if err := s.Validate(); err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(p.stderr, &slog.HandlerOptions{Level: s.LogLevel}))
	file, err := devFile(s.Policies)
	if err != nil {
		return err
	}
	ln, err := listen(ctx, "listen", s.Listen)
	if err != nil {
		return err
	}
	defer ln.Close()
	partnerLn, err := listen(ctx, "partner", s.Partner)
	if err != nil {
		return err
	}
	fake, stopPartner, err := servePartner(partnerLn)
	if err != nil {
		return errors.Join(err, partnerLn.Close())
	}
	defer stopPartner()
	store, err := embedded.Start()
	if err != nil {
		return err
	}
	defer store.Close()
	client := store.Client()
	defer client.Close()

	n := newNode(nodeConfig{
		listener: ln, client: client, log: log, shutdownTimeout: 5 * time.Second, dependencyLabel: true, file: file,
	})
	defer n.close()
	if err := n.start(ctx); err != nil {
		return err
	}
	n.warm(ctx)
	fmt.Fprintf(p.stdout, devBanner, ln.Addr(), partnerLn.Addr(), fake.Limit(), store.Addr())
	if p.listening != nil {
		p.listening(ln.Addr(), partnerLn.Addr())
	}
	err = n.run(ctx)
	stats := fake.Stats()
	fmt.Fprintf(p.stdout, "\nThe fake partner counted %d calls, %d of them over its limit. Everything else is forgotten.\n",
		stats.Calls, stats.Violations)
	return err
}

// devFile is the policy file, or the samples, which do not change.
func devFile(path string) (*policyFile, error) {
	if path != "" {
		return openPolicies(path)
	}
	doc, err := config.ParsePolicies("dev.yaml", devPolicies, offered)
	if err != nil {
		return nil, err
	}
	return &policyFile{doc: doc}, nil
}

// servePartner serves the fake partner until it is stopped. It takes what the policy demo promises at the partner: its
// capacity of 5, and 5 more that were admitted up to a second before they arrive.
func servePartner(ln net.Listener) (fake *partner.Partner, stop func(), err error) {
	fake, err = partner.New(partner.Config{Capacity: 10, Refill: 5, Per: time.Second})
	if err != nil {
		return nil, nil, err
	}
	server := &http.Server{Handler: fake, ReadHeaderTimeout: 5 * time.Second}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(ln) // ends when it is stopped
	}()
	return fake, func() {
		_ = server.Close()
		<-done
	}, nil
}

const devBanner = `
  ###########################################################################
  #  broker dev: all state is in the memory of this process.                #
  #  NOTHING SURVIVES IT. For trying things out, never for production.      #
  ###########################################################################

broker   http://%[1]s
partner  http://%[2]s  a fake: takes %[3]s, counts violations at /stats
redis    %[4]s  embedded

Ask before you call the partner; the sixth ask within a second is refused with Retry-After:

  curl -i -X POST http://%[1]s/v1/dependencies/demo/admissions
  curl -i http://%[2]s/

One bucket per tenant, and a daily quota:

  curl -i http://%[1]s/v1/dependencies/shopify/admissions -H 'Content-Type: application/json' -d '{"tenant":"acme","cost":30}'

What is left, and what has happened:

  curl http://%[1]s/v1/dependencies/demo
  curl http://%[1]s/metrics

Ctrl-C ends it.
`
