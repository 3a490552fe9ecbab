package docker

import (
	"context"
	"fmt"
	"strings"

	"github.com/sandgate/sandgate/providers"
)

const creationsPerCPU = 4

// Describe reports what the daemon enforces, by what it says about itself.
func (p *Provider) Describe(context.Context) (providers.Description, error) {
	runtime := p.info.DefaultRuntime
	seccomp := providers.Enforcement{Name: "seccomp", Detail: "the daemon has no seccomp"}
	for _, o := range p.info.SecurityOptions {
		if strings.HasPrefix(o, "name=seccomp") {
			seccomp.Enforced, seccomp.Detail = true, "the daemon's default profile, which gVisor does not load"
		}
	}
	return providers.Description{
		Name:         "docker",
		Runtime:      fmt.Sprintf("docker %s (%s)", p.info.ServerVersion, runtime),
		Capabilities: []string{"images", providers.CapabilityNetworkProxy}, DefaultResources: DefaultResources(),
		Creations: creationsPerCPU * p.info.NCPU,
		Enforcement: append(p.limits(),
			providers.Enforcement{Name: "network", Enforced: true, Detail: "a network namespace with only a loopback interface, also for network proxy, where with gVisor, and by IPv6, " + providers.AddressesNeedProxy + "; with network full the template's Docker network"},
			providers.Enforcement{Name: "unprivileged", Enforced: true, Detail: "no capabilities, no new privileges, read-only system; root only where a template asks for an image's own user"},
			seccomp,
			providers.Enforcement{Name: "kill_tree", Detail: "Docker gives the agent no cgroup of its own; it sweeps its descendants"},
			providers.Enforcement{Name: "write_prefixes", Detail: "the kernel and the seccomp profile decide: where they have no Landlock, they bind file calls only, and the message of each command's end reports it"},
		),
	}, nil
}

// limits are the protections that a request's resources ask for.
func (p *Provider) limits() []providers.Enforcement {
	limit := func(name string, has bool, detail string) providers.Enforcement {
		if !has {
			detail = "the daemon reports that it cannot limit it"
		}
		return providers.Enforcement{Name: name, Enforced: has, Detail: detail}
	}
	memory := limit("memory", p.info.MemoryLimit, "cgroup limit, no swap")
	if memory.Enforced && !p.info.SwapLimit {
		memory.Detail = "cgroup limit; swap is not limited"
	}
	return []providers.Enforcement{
		memory,
		limit("cpu", p.info.CPUCfsQuota, "cgroup quota"),
		limit("processes", p.info.PidsLimit, "cgroup limit; with gVisor its own limit of processes and threads"),
		{Name: "disk", Detail: "Docker's volumes have no size limit; give the daemon's data directory a file system of its own"},
	}
}
