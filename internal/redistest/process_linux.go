package redistest

import "syscall"

// diesWithParent says that the kernel ends a child when the test binary is
// gone, however it went: os.Exit, a panic, a time-out or kill -9.
const diesWithParent = true

// childAttr asks for SIGKILL at the death of the parent. Strictly the kernel
// watches the thread that forked; Go ends a thread only when a goroutine exits
// that locked itself to it, which no test here does.
func childAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
