package local

import (
	"fmt"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/local/disk"
)

// Less than this does not suffice for the agent and one command, or the kernel
// rejects it.
const (
	minMemory    = 8 << 20
	minCPUMillis = 10
	minProcesses = 16
)

// checkResources rejects limits under which no sandbox starts. 0 is no limit.
func checkResources(r providers.Resources) error {
	for _, f := range []struct {
		name             string
		value, low, high int64
	}{
		{"memory_bytes", r.MemoryBytes, minMemory, 0},
		{"cpu_millis", int64(r.CPUMillis), minCPUMillis, 0},
		{"max_processes", int64(r.MaxProcesses), minProcesses, 0},
		{"disk_bytes", r.DiskBytes, disk.MinSize, disk.MaxSize},
	} {
		if f.value > 0 && f.value < f.low {
			return fmt.Errorf("resources.%s is %d, but the minimum is %d: %w", f.name, f.value, f.low, providers.ErrInvalid)
		}
		if f.high > 0 && f.value > f.high {
			return fmt.Errorf("resources.%s is %d, but the maximum is %d: %w", f.name, f.value, f.high, providers.ErrInvalid)
		}
	}
	return nil
}
