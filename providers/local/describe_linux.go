package local

import (
	"context"
	"fmt"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/local/disk"
)

// creationsPerCPU keeps the processors busy while some creations wait for I/O.
// More at once only make each slower.
const creationsPerCPU = 8

// Describe starts one sandbox and reports which protections hold on this
// machine.
func (p *Provider) Describe(ctx context.Context) (providers.Description, error) {
	if err := p.checkMachine(ctx); err != nil {
		return providers.Description{}, err
	}
	engine := p.runtime.Name
	if v := p.runtime.Version(ctx); v != "" {
		engine += " " + v
	}
	network := "a network namespace with only a loopback interface, also with network proxy, which leads the addresses of rules to the agent; with network full the host's own"
	if p.runtime.GVisor {
		network = "gVisor's own network stack with only a loopback interface, also with network proxy, where " + providers.AddressesNeedProxy + "; with network full the host's network"
	}
	seccomp := "the default profile of containerd and Docker"
	if p.runtime.GVisor {
		seccomp += ", inside gVisor's kernel"
	}
	unprivileged := "no root, no capabilities, no new privileges, read-only system"
	if !p.runtime.GVisor {
		if p.usesNamespaces() {
			unprivileged += ", a user namespace"
		} else {
			unprivileged += fmt.Sprintf("; no user namespace: %s", p.noNamespace.Load())
		}
		unprivileged += "; with the option root, root of a user namespace of its own and a writable system"
	}
	return providers.Description{
		Name:         "local",
		Runtime:      engine,
		Capabilities: []string{"images", providers.CapabilityNetworkProxy}, DefaultResources: DefaultResources(),
		Creations: creationsPerCPU * runtime.NumCPU(),
		Enforcement: p.applyProbe(append(p.limits(),
			providers.Enforcement{Name: "network", Enforced: true, Detail: network},
			providers.Enforcement{Name: "unprivileged", Enforced: true, Detail: unprivileged},
			providers.Enforcement{Name: "seccomp", Enforced: true, Detail: seccomp},
			p.killTree(),
			p.writePrefixes(),
			p.kernelLimits(),
			p.total(),
		)),
	}, nil
}

// writePrefixes reports whether access policies apply to writes of commands.
func (p *Provider) writePrefixes() providers.Enforcement {
	e := providers.Enforcement{Name: "write_prefixes"}
	switch {
	case p.runtime.GVisor:
		e.Detail = "gVisor has no Landlock; they apply to file calls only"
	case landlockABI() < 2: // with the first, nothing could be renamed across directories
		e.Detail = "the kernel has no Landlock (Linux 5.19 or later); they apply to file calls only"
	default:
		e.Enforced, e.Detail = true, "Landlock for commands, and the agent's own check for file calls"
	}
	return e
}

func landlockABI() int {
	n, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return 0
	}
	return int(n)
}

func (p *Provider) limits() []providers.Enforcement {
	controller := func(name, of, detail string) providers.Enforcement {
		if p.cgroups.Has(of) {
			return providers.Enforcement{Name: name, Enforced: true, Detail: detail}
		}
		return providers.Enforcement{Name: name, Detail: "the cgroup controller " + of + " is not available"}
	}
	memory := controller("memory", "memory", "cgroup limit, no swap")
	if memory.Enforced && !p.cgroups.LimitsSwap() {
		memory.Detail = "cgroup limit; swap is not limited"
	}
	processes := controller("processes", "pids", "cgroup limit")
	if p.runtime.GVisor {
		processes = providers.Enforcement{Name: "processes", Enforced: true, Detail: "gVisor's own limit of processes and threads"}
		if memory.Enforced {
			memory.Detail += "; a process that exceeds it ends the whole sandbox"
		}
	}
	disk := providers.Enforcement{Name: "disk", Enforced: true, Detail: "a file system of its own for each sandbox; " + p.space.Describe()}
	if p.disks.Unavailable() != "" {
		disk = providers.Enforcement{Name: "disk", Detail: p.disks.Unavailable()}
	}
	return p.applyProbe([]providers.Enforcement{
		memory,
		controller("cpu", "cpu", "cgroup quota"),
		processes,
		disk,
	})
}

func (p *Provider) killTree() providers.Enforcement {
	e := providers.Enforcement{Name: "kill_tree"}
	switch {
	case p.runtime.GVisor:
		e.Detail = "gVisor cannot delegate a cgroup to the agent, which sweeps its descendants instead"
	case p.config.Profile == ProfileRestricted:
		e.Detail = "the restricted profile delegates no cgroup to the agent, which sweeps its descendants instead"
	case !p.cgroups.CanDelegate():
		e.Detail = "no cgroup v2 tree is mounted"
	default:
		e.Enforced, e.Detail = true, "a cgroup per command"
	}
	return e
}

// kernelLimits reports what the kernel limits for each sandbox, and what for
// all together.
func (p *Provider) kernelLimits() providers.Enforcement {
	e := providers.Enforcement{Name: "kernel_limits", Enforced: true}
	if p.runtime.GVisor {
		e.Detail = "gVisor's own kernel limits each sandbox"
		return e
	}
	e.Detail = "each sandbox has its own user id; shared by the whole machine: open files, terminals (at most 256 per sandbox), memory of sockets with cgroup v1"
	return e
}

// total describes the limits of all sandboxes together.
func (p *Provider) total() providers.Enforcement {
	e := providers.Enforcement{Name: "total"}
	var held, missing []string
	for _, l := range []struct {
		controller, text string
		value            int64
	}{
		{"memory", disk.FormatBytes(p.totalLimits.Memory) + " of memory", p.totalLimits.Memory},
		{"pids", strconv.FormatInt(p.totalLimits.Processes, 10) + " processes", p.totalLimits.Processes},
	} {
		switch {
		case l.value == 0:
			missing = append(missing, "no limit on "+l.controller+" is configured")
		case !p.cgroups.Has(l.controller):
			missing = append(missing, "the cgroup controller "+l.controller+" is not available")
		default:
			held = append(held, l.text)
		}
	}
	err := p.cgroups.LimitAll(p.totalLimits)
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
