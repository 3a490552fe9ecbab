package docker

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/docker/image"
	"github.com/sandgate/sandgate/providers/internal/directory"
)

// The container has no more rights than contract 24 allows.
func TestContainerHasNoMoreRightsThanItNeeds(t *testing.T) {
	rec := &record{Base: directory.Base{Container: "sg-a", Incarnation: "one"}, Disk: "disk", Socket: "socket-random", Transport: TransportSocket}
	o, err := decodeOptions(providers.Spec{Network: providers.NetworkNone})
	if err != nil {
		t.Fatal(err)
	}
	pl := &plan{
		server: "server", name: "sg-a", dir: "/state/sg-a", rec: rec, options: o, image: "prepared", user: o.userOf(image.Image{}), cpus: 2,
		spec: providers.Spec{Network: providers.NetworkNone, Command: []string{"sleep", "1"}, Resources: providers.Resources{MemoryBytes: 64 << 20, CPUMillis: 9000, MaxProcesses: 7}},
		env:  environment(map[string]string{"B": "2", "A": "1"}),
	}
	c := pl.container()
	h := c.HostConfig
	if !h.ReadonlyRootfs || h.Privileged || h.NetworkMode != "none" || !slices.Equal(h.CapDrop, []string{"ALL"}) || len(h.CapAdd) > 0 ||
		!slices.Equal(h.SecurityOpt, []string{"no-new-privileges"}) || c.Config.User != "1000:1000" {
		t.Errorf("host configuration %+v, user %q", h, c.Config.User)
	}
	if h.Memory != 64<<20 || h.MemorySwap != h.Memory || *h.PidsLimit != 7 || h.NanoCPUs != 2e9 {
		t.Errorf("limits %+v: a machine of 2 processors cannot have more", h.Resources)
	}
	if want := []string{"HOME=/home/sandbox", "A=1", "B=2"}; !slices.Equal(c.Config.Env, want) {
		t.Errorf("environment %q, want %q", c.Config.Env, want)
	}
	want := "/sandgate/sandgate-agent serve --incarnation one --state-dir /run/sandgate --workdir /workspace --listen unix:///sandgate/socket/agent.sock -- sleep 1"
	if got := strings.Join(c.Config.Entrypoint, " "); got != want {
		t.Errorf("it runs %s\nwant %s", got, want)
	}
	var binds []string
	for _, m := range h.Mounts {
		if m.Type == mount.TypeBind {
			binds = append(binds, m.Source)
		}
	}
	if !slices.Equal(binds, []string{"/state/sg-a/socket-random"}) {
		t.Errorf("of the host it has %q", binds)
	}

	if len(h.Ulimits) > 0 {
		t.Errorf("the daemon's machine counts all processes of the user: %+v", h.Ulimits)
	}

	rec.Runtime = "runsc"
	rec.Transport, pl.options.GPUs, pl.options.WritableRoot, pl.options.Runtime, pl.spec.Network = TransportExec, -1, true, "runsc", providers.NetworkFull
	h = pl.hostConfig()
	if h.NetworkMode != "bridge" || h.ReadonlyRootfs || h.Runtime != "runsc" || len(h.DeviceRequests) != 1 || h.DeviceRequests[0].Count != -1 || len(h.Mounts) != len(image.Places) {
		t.Errorf("with options: %+v", h)
	}
	// gVisor ends a sandbox to which the cgroup refuses a thread.
	if *h.PidsLimit != 16*7+1024 || len(h.Ulimits) != 1 || *h.Ulimits[0] != (container.Ulimit{Name: "nproc", Soft: 7, Hard: 7}) {
		t.Errorf("with gVisor: limit of %d, %+v", *h.PidsLimit, h.Ulimits)
	}
}

// With the network mode PROXY a container has no more of a network than without one,
// and its resolvers ask the agent.
func TestProxiedContainerHasNoOtherNetwork(t *testing.T) {
	rec := &record{Base: directory.Base{Container: "sg-a", Incarnation: "one"}, Disk: "disk", Transport: TransportExec}
	o, err := decodeOptions(providers.Spec{Network: providers.NetworkProxy})
	if err != nil {
		t.Fatal(err)
	}
	pl := &plan{name: "sg-a", rec: rec, options: o, user: o.userOf(image.Image{}), cpus: 2, spec: providers.Spec{Network: providers.NetworkProxy, Command: []string{"true"}}}
	h := pl.hostConfig()
	if h.NetworkMode != "none" || len(h.DNS) != 1 || h.DNS[0].String() != "127.0.0.1" || len(h.CapAdd) > 0 ||
		!maps.Equal(h.Sysctls, map[string]string{"net.ipv4.ip_unprivileged_port_start": "0"}) {
		t.Errorf("host configuration %+v", h)
	}
	if got := strings.Join(pl.serve(), " "); !strings.HasSuffix(got, " --egress -- true") {
		t.Errorf("it runs %s", got)
	}
}

func TestJudge(t *testing.T) {
	for what, c := range map[string]struct {
		state   container.State
		want    providers.State
		failure providers.Failure
	}{
		"running":                        {container.State{Running: true}, providers.StateActive, 0},
		"running after a command's kill": {container.State{Running: true, OOMKilled: true}, providers.StateActive, 0},
		"killed for memory":              {container.State{OOMKilled: true, ExitCode: 137}, providers.StateFailed, providers.FailureOutOfMemory},
		"ended after a command's kill":   {container.State{OOMKilled: true, ExitCode: 1}, providers.StateFailed, 0},
		"stopped by somebody":            {container.State{ExitCode: 0}, providers.StateFailed, 0},
	} {
		var info providers.Info
		if judge(&info, &c.state); info.State != c.want || info.Failure != c.failure {
			t.Errorf("%s: %+v", what, info)
		}
	}
}
