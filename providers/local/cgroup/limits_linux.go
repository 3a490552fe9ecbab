package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Limits are the limits of all sandboxes together, so that no number of them,
// each within its own limits, can exhaust the machine. They are on the parent of
// all sandboxes' cgroups. Processor time has none: the kernel divides it between
// that cgroup and the rest of the machine.
type Limits struct {
	Memory    int64 // bytes; 0: none
	Processes int64 // 0: none
}

const (
	// The larger of these shares of the memory is left to the machine.
	machineShare  = 10 // a tenth
	machineMemory = 512 << 20
)

// NewLimits returns the limits to set. 0 stands for the default, a negative
// number for no limit.
func NewLimits(memory, processes int64) (Limits, error) {
	out := Limits{Memory: max(memory, 0), Processes: max(processes, 0)}
	if memory == 0 {
		var info unix.Sysinfo_t
		if err := unix.Sysinfo(&info); err != nil {
			return out, fmt.Errorf("memory of the machine: %w", err)
		}
		total := int64(info.Totalram) * int64(info.Unit)
		out.Memory = total - min(max(total/machineShare, machineMemory), total/2)
	}
	if processes == 0 {
		for _, file := range []string{"/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"} {
			data, err := os.ReadFile(file)
			if err != nil {
				return out, err
			}
			n, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
			if err != nil {
				return out, fmt.Errorf("%s: %w", file, err)
			}
			if n /= 2; out.Processes == 0 || n < out.Processes {
				out.Processes = n
			}
		}
	}
	return out, nil
}

// LimitAll sets the limits of all sandboxes together. Another server may have
// removed the parent as unused, so each creation sets them again.
func (g Groups) LimitAll(all Limits) error {
	if g.v2Only {
		return g.limitUnified(all)
	}
	var errs []error
	limit := func(controller string, value int64, files ...string) {
		if value == 0 || !g.Has(controller) {
			return
		}
		dir := filepath.Join(root, controller, g.parent)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			errs = append(errs, err)
			return
		}
		errs = append(errs, writeLimits(dir, value, files...))
	}
	limit("pids", all.Processes, "pids.max")
	limit("memory", all.Memory, "memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
	return errors.Join(errs...)
}

func (g Groups) limitUnified(all Limits) error {
	// A group has a controller only if all groups above it enable it.
	dir := root
	for _, part := range strings.Split(strings.Trim(g.parent, "/"), "/") {
		for _, controller := range []string{"cpu", "memory", "pids"} {
			// Setting the limit reports a missing controller.
			_ = os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+controller), 0)
		}
		dir = filepath.Join(dir, part)
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	var errs []error
	if all.Processes > 0 && g.Has("pids") {
		errs = append(errs, writeLimits(dir, all.Processes, "pids.max"))
	}
	if all.Memory > 0 && g.Has("memory") {
		errs = append(errs, writeLimits(dir, all.Memory, "memory.max"))
	}
	return errors.Join(errs...)
}

// writeLimits writes the value to all files. The memory limit must not exceed
// that of memory and swap, so raising it succeeds only in the second round.
func writeLimits(dir string, value int64, files ...string) error {
	var errs []error
	for range files {
		errs = errs[:0]
		for _, file := range files {
			err := os.WriteFile(filepath.Join(dir, file), strconv.AppendInt(nil, value, 10), 0)
			// The kernel may be built or booted without accounting of swap.
			if err != nil && (file == files[0] || !errors.Is(err, os.ErrNotExist)) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}
