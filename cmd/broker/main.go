// Command broker answers over HTTP whether a dependency may be used now. `broker dev` needs nothing beside it; `broker
// serve` keeps its state in Redis.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9/logging"
	"github.com/spf13/cobra"

	"github.com/sluicehq/sluice/internal/config"
)

func main() {
	logging.Disable() // go-redis would write its own lines into a log of JSON; what fails is returned and logged by us
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // so that a second signal ends the process at once
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run does what the arguments say until ctx is done, and returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	p := &program{stdout: stdout, stderr: stderr, environ: os.Environ()}
	return p.run(ctx, args)
}

// program is one run of broker.
type program struct {
	stdout, stderr io.Writer
	environ        []string
	// listening is told where is served, once everything is: asks will be answered. nil: nobody is told.
	listening func(broker, partner net.Addr)
	// checkEvery is how often Redis is asked how it is configured. If zero, 10 s.
	checkEvery time.Duration
}

func (p *program) run(ctx context.Context, args []string) int {
	version, _ := build()
	root := &cobra.Command{
		Use:           "broker",
		Short:         "Admission to dependencies of a fixed capacity",
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(p.devCommand(), p.serveCommand(), p.checkCommand(), p.versionCommand())
	root.SetArgs(args)
	root.SetOut(p.stdout)
	root.SetErr(p.stderr)
	if err := root.ExecuteContext(ctx); err != nil {
		p.explain(err)
		return 1
	}
	return 0
}

// explain writes an error for a person: mistakes in a policy file one a line, as compilers do.
func (p *program) explain(err error) {
	mistakes, ok := errors.AsType[*config.PolicyError](err)
	if !ok {
		fmt.Fprintf(p.stderr, "broker: %v\n", err)
		return
	}
	s := "s"
	if len(mistakes.Problems) == 1 {
		s = ""
	}
	fmt.Fprintf(p.stderr, "%v\nbroker: %d mistake%s in %s\n", mistakes, len(mistakes.Problems), s, mistakes.File)
}
