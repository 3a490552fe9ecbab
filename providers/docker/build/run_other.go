//go:build !linux

package build

import "os/exec"

func runChild(cmd *exec.Cmd) error { return cmd.Run() }
