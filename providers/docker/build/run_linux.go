package build

import (
	"os/exec"
	"runtime"
	"syscall"
)

// runChild runs a program that ends with this one, even if this one is killed.
func runChild(cmd *exec.Cmd) error {
	// The kernel sends the signal when the thread that has started the program ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd.Run()
}
