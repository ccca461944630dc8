//go:build unix

package redistest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

// process is a child that is watched without a goroutine, so that the shared
// server, which outlives every test, is no leak in the eyes of goleak. Its pid
// cannot be reused before wait has reaped it, hence signals are safe. The
// methods are not safe for concurrent use; Server locks.
type process struct {
	pid  int
	dead bool // reaped
}

// spawn starts the program with both outputs going to log.
func spawn(path string, args []string, log *os.File) (*process, error) {
	// A context that never ends: Cleanup or the death of this process ends it.
	cmd := exec.CommandContext(context.Background(), path, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = childAttr()
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", path, err)
	}
	p := &process{pid: cmd.Process.Pid}
	// From here on the pid is ours alone; os.Process would only hold a handle.
	if err := cmd.Process.Release(); err != nil {
		return nil, errors.Join(err, p.kill())
	}
	return p, nil
}

// wait is wait4 on the child; it reports a stopped child only if asked to by
// options, and remembers the end of it.
func (p *process) wait(options int) (syscall.WaitStatus, error) {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(p.pid, &status, options, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case err != nil:
			p.dead = true // not our child any more
			return status, fmt.Errorf("wait for process %d: %w", p.pid, err)
		case pid == p.pid && (status.Exited() || status.Signaled()):
			p.dead = true
		}
		return status, nil
	}
}

// exited says whether the child has ended, without waiting for it.
func (p *process) exited() bool {
	if !p.dead {
		// A failed wait marks the child dead, which is all that is asked here.
		_, _ = p.wait(syscall.WNOHANG)
	}
	return p.dead
}

func (p *process) signal(sig syscall.Signal) error {
	if p.exited() {
		return fmt.Errorf("%v: process %d has ended", sig, p.pid)
	}
	if err := syscall.Kill(p.pid, sig); err != nil {
		return fmt.Errorf("%v to process %d: %w", sig, p.pid, err)
	}
	return nil
}

// stop freezes the child and returns once the kernel says that it stands.
func (p *process) stop() error {
	if err := p.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	status, err := p.wait(syscall.WUNTRACED)
	if err == nil && !status.Stopped() {
		err = fmt.Errorf("process %d ended instead of stopping", p.pid)
	}
	return err
}

// kill ends the child, frozen or not, and returns once it is gone. A child
// that has ended already is no error.
func (p *process) kill() error {
	if p.exited() {
		return nil
	}
	if err := p.signal(syscall.SIGKILL); err != nil {
		return err
	}
	_, err := p.wait(0)
	return err
}
