package local

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/directory"
	shared "github.com/sandgate/sandgate/providers/internal/record"
	"github.com/sandgate/sandgate/providers/local/disk"
	"github.com/sandgate/sandgate/providers/local/oci"
)

// shortfalls are the protections that a sandbox started for the probe missing: reasons
// by name.
type shortfalls map[string]string

// probeSpec has every limit, each small enough not to be mistaken for an
// inherited one.
func probeSpec() providers.Spec {
	return providers.Spec{Network: providers.NetworkNone, Resources: providers.Resources{
		MemoryBytes: 192 << 20, CPUMillis: 900, MaxProcesses: 200, DiskBytes: disk.MinSize,
	}}
}

// checkMachine starts a sandbox under all limits and checks which ones hold. It
// returns an error if no sandbox starts, with two exceptions: running sandboxes
// must stay reachable, and those on a full disk must be deletable.
func (p *Provider) checkMachine(ctx context.Context) error {
	missing, err := p.probe(ctx)
	if err != nil && ctx.Err() == nil && p.usesNamespaces() {
		missing, err = p.probeWithout(ctx, err)
	}
	p.shortfalls.Store(&missing)
	switch {
	case err == nil:
		return nil
	case ctx.Err() == nil && (p.adopted > 0 || errors.Is(err, providers.ErrExhausted)):
		p.log.LogAttrs(ctx, slog.LevelError, "no sandbox can be started on this machine now", slog.Any("error", err))
		return nil
	default:
		return fmt.Errorf("no sandbox can be started on this machine: %w", err)
	}
}

// probeWithout is probe for a machine on which no sandbox starts with a user namespace,
// such as a container whose /proc is masked. If one starts without, new sandboxes get none.
func (p *Provider) probeWithout(ctx context.Context, reason error) (missing shortfalls, err error) {
	p.noNamespace.Store(noNamespaceByMachine)
	if missing, err = p.probe(ctx); err != nil {
		p.noNamespace.Store("")
		return missing, err
	}
	p.log.LogAttrs(ctx, slog.LevelWarn, "no sandbox starts with a user namespace; new ones get none", slog.Any("error", reason))
	return missing, nil
}

func (p *Provider) probe(ctx context.Context) (missing shortfalls, err error) {
	id := "probe." + shared.Random()
	held, err := p.locks.Acquire(ctx, id)
	if err != nil {
		return nil, err
	}
	d := p.layout.Pooled(id)
	defer func() { held.Release(!d.Exists()) }()
	spec := probeSpec()
	// The next server removes a sandbox in this phase.
	rec, conn, err := p.Build(ctx, held, d, spec, directory.Creating)
	if err != nil {
		return nil, err
	}
	_ = conn.Close()
	missing = p.inspect(rec, spec.Resources)
	if err := p.destroy(ctx, held, d, id, rec); err != nil {
		return missing, fmt.Errorf("a sandbox was started, but could not be removed: %w", err)
	}
	return missing, nil
}

// inspect returns the protections that a started sandbox lacks.
func (p *Provider) inspect(rec *record, want providers.Resources) shortfalls {
	missing := shortfalls{}
	limit := func(name, controller string, value int64, v1, v2 string) {
		if !p.cgroups.Has(controller) {
			return // limits reports it
		}
		if got, err := p.cgroups.Limit(rec.Container, controller, v1, v2); err != nil || got != strconv.FormatInt(value, 10) {
			missing[name] = fmt.Sprintf("the runtime set the limit %q instead of %d", got, value)
		}
	}
	processes := int64(want.MaxProcesses)
	if p.runtime.GVisor {
		processes = oci.GVisorTasks(processes)
	}
	limit("memory", "memory", want.MemoryBytes, "memory.limit_in_bytes", "memory.max")
	limit("cpu", "cpu", int64(want.CPUMillis)*100, "cpu.cfs_quota_us", "cpu.max")
	limit("processes", "pids", processes, "pids.max", "pids.max")
	if p.runtime.GVisor {
		return missing // the rest is inside its kernel
	}
	if p.disks.Unavailable() == "" {
		var st unix.Statfs_t
		err := unix.Statfs(fmt.Sprintf("/proc/%d/root%s", rec.Init.PID, defaultTarget), &st)
		if err != nil || int64(st.Blocks)*st.Bsize > 2*want.DiskBytes {
			missing["disk"] = "the sandbox does not have its own file system"
		}
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", rec.Init.PID))
	if err != nil {
		status = nil
	}
	if field(status, "Seccomp") != "2" {
		missing["seccomp"] = "the runtime set no filter"
	}
	if field(status, "NoNewPrivs") != "1" || strings.Trim(field(status, "CapBnd")+field(status, "CapEff"), "0") != "" {
		missing["unprivileged"] = "the runtime left privileges"
	}
	host, err1 := os.Readlink("/proc/self/ns/user")
	inside, err2 := os.Readlink(fmt.Sprintf("/proc/%d/ns/user", rec.Init.PID))
	if err := errors.Join(err1, err2); err != nil || rec.Namespace == (inside == host) {
		missing["unprivileged"] = "the runtime did not use the user namespace"
	}
	return missing
}

// field returns the value of a line of /proc/PID/status.
func field(status []byte, name string) string {
	for line := range strings.Lines(string(status)) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// applyProbe corrects a list by the findings of the probe.
func (p *Provider) applyProbe(list []providers.Enforcement) []providers.Enforcement {
	found := p.shortfalls.Load()
	if found == nil {
		return list
	}
	missing := *found
	for i, e := range list {
		if reason := missing[e.Name]; reason != "" {
			list[i] = providers.Enforcement{Name: e.Name, Detail: reason}
		}
	}
	return list
}
