//go:build unix && !linux

package redistest

import "syscall"

// diesWithParent is false where the kernel offers no such thing: there every
// server belongs to one test and ends in its Cleanup.
const diesWithParent = false

func childAttr() *syscall.SysProcAttr { return nil }
