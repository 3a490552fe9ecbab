// Package oci runs containers by the command line of an OCI runtime, and watches
// their processes.
package oci

import (
	"path/filepath"
	"strings"
)

// IsGVisor reports whether a runtime is gVisor's, by its name as containerd does.
func IsGVisor(runtime string) bool { return strings.HasPrefix(filepath.Base(runtime), "runsc") }

// Process is a process of this machine. Its start time distinguishes it from a
// later process with the same pid.
type Process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // clock ticks after boot
	Boot  string `json:"boot"`
}
