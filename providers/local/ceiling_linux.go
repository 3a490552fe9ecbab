package local

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/providers"
)

// ceiling limits all sandboxes together, so that no number of them, each within
// its own limits, can take the machine. It is on the cgroup below which they get
// theirs. There is none on processor time: the kernel shares it between that
// cgroup and the rest of the machine.
type ceiling struct {
	memory    int64 // bytes; 0: none
	processes int64 // 0: none
}

const (
	// Of memory the larger of these is left to the machine.
	machineShare  = 10 // a tenth
	machineMemory = 512 << 20
)

func newCeiling(c Config) (ceiling, error) {
	out := ceiling{memory: max(c.MaxMemory, 0), processes: max(c.MaxProcesses, 0)}
	if c.MaxMemory == 0 {
		var info unix.Sysinfo_t
		if err := unix.Sysinfo(&info); err != nil {
			return out, fmt.Errorf("memory of the machine: %w", err)
		}
		total := int64(info.Totalram) * int64(info.Unit)
		out.memory = total - min(max(total/machineShare, machineMemory), total/2)
	}
	if c.MaxProcesses == 0 {
		for _, file := range []string{"/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"} {
			data, err := os.ReadFile(file)
			if err != nil {
				return out, err
			}
			n, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
			if err != nil {
				return out, fmt.Errorf("%s: %w", file, err)
			}
			if n /= 2; out.processes == 0 || n < out.processes {
				out.processes = n
			}
		}
	}
	return out, nil
}

// limitAll sets the ceiling. The group may have been removed by a server that
// found it unused, so it is set for every sandbox.
func (c cgroups) limitAll(top ceiling) error {
	if c.pure {
		return c.limitUnified(top)
	}
	var errs []error
	limit := func(controller string, value int64, files ...string) {
		if value == 0 || !c.has(controller) {
			return
		}
		dir := filepath.Join(cgroupRoot, controller, c.parent)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			errs = append(errs, err)
			return
		}
		errs = append(errs, writeLimits(dir, value, files...))
	}
	limit("pids", top.processes, "pids.max")
	limit("memory", top.memory, "memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
	return errors.Join(errs...)
}

func (c cgroups) limitUnified(top ceiling) error {
	// A controller is there for a group when all above it pass it on.
	dir := cgroupRoot
	for _, part := range strings.Split(strings.Trim(c.parent, "/"), "/") {
		for _, controller := range []string{"cpu", "memory", "pids"} {
			// What is missing is reported when its limit is set.
			_ = os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+controller), 0)
		}
		dir = filepath.Join(dir, part)
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	var errs []error
	if top.processes > 0 && c.has("pids") {
		errs = append(errs, writeLimits(dir, top.processes, "pids.max"))
	}
	if top.memory > 0 && c.has("memory") {
		errs = append(errs, writeLimits(dir, top.memory, "memory.max"))
	}
	return errors.Join(errs...)
}

// writeLimits writes the value to all files. The limit on memory may not exceed
// the one on memory and swap, so a raised one succeeds the second time only.
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

// describe returns what holds for all sandboxes together.
func (top ceiling) describe(c cgroups, err error) providers.Enforcement {
	e := providers.Enforcement{Name: "total"}
	var held, missing []string
	for _, l := range []struct {
		controller, text string
		value            int64
	}{
		{"memory", bytesText(top.memory) + " of memory", top.memory},
		{"pids", strconv.FormatInt(top.processes, 10) + " processes", top.processes},
	} {
		switch {
		case l.value == 0:
			missing = append(missing, "no limit on "+l.controller+" is configured")
		case !c.has(l.controller):
			missing = append(missing, "the cgroup controller "+l.controller+" is not available")
		default:
			held = append(held, l.text)
		}
	}
	switch {
	case err != nil:
		e.Detail = err.Error()
	case len(missing) > 0:
		e.Detail = strings.Join(missing, "; ")
	default:
		e.Enforced, e.Detail = true, "all sandboxes together: "+strings.Join(held, ", ")
	}
	return e
}
