package docker

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/docker/image"
	"github.com/sandgate/sandgate/providers/internal/directory"
)

// plan is everything that decides what a sandbox's container looks like.
type plan struct {
	server  string // the state directory's id
	name    string // the sandbox's
	dir     directory.Dir
	rec     *record
	spec    providers.Spec
	options options
	image   string // the prepared one
	user    image.User
	env     []string // as Docker takes it
	cpus    int      // of the daemon's machine
}

// environment returns a spec's environment as Docker takes it.
func environment(env map[string]string) []string {
	var out []string
	if _, ok := env["HOME"]; !ok {
		out = append(out, "HOME="+image.HomeDir)
	}
	for _, k := range slices.Sorted(maps.Keys(env)) {
		out = append(out, k+"="+env[k])
	}
	return out
}

// container returns the request that creates the container.
func (p *plan) container() client.ContainerCreateOptions {
	return client.ContainerCreateOptions{
		Name: p.rec.Container,
		Config: &container.Config{
			Hostname: "sandbox", User: p.user.Name, Env: p.env, Image: p.image, WorkingDir: "/",
			Entrypoint: p.serve(), StopSignal: "SIGTERM",
			Healthcheck: &container.HealthConfig{Test: []string{"NONE"}},
			Labels:      p.labels(),
		},
		HostConfig: p.hostConfig(),
	}
}

func (p *plan) labels() map[string]string {
	return map[string]string{serverLabel: p.server, sandboxLabel: p.name}
}

func (p *plan) serve() []string {
	args := []string{image.AgentPath, "serve", "--incarnation", p.rec.Incarnation, "--state-dir", image.StateDir, "--workdir", image.WorkingDir}
	if p.spec.WorkingDirectory != "" {
		args[len(args)-1] = p.spec.WorkingDirectory
	}
	if p.rec.Transport == TransportSocket {
		args = append(args, "--listen", "unix://"+image.SocketDir+"/"+socketName)
	}
	if p.spec.Network == providers.NetworkProxy {
		args = append(args, "--egress")
	}
	if len(p.spec.Command) > 0 {
		args = append(append(args, "--"), p.spec.Command...)
	}
	return args
}

func (p *plan) hostConfig() *container.HostConfig {
	r := p.spec.Resources
	h := &container.HostConfig{
		NetworkMode: "none", ReadonlyRootfs: !p.options.WritableRoot,
		CapDrop: []string{"ALL"}, SecurityOpt: []string{"no-new-privileges"},
		Runtime: p.options.Runtime, Init: new(bool),
		// The agent's own few lines, for what goes wrong at its start.
		LogConfig: container.LogConfig{Type: "json-file", Config: map[string]string{"max-size": "256k", "max-file": "1"}},
		Tmpfs:     map[string]string{"/run": "rw,nosuid,nodev,size=64m,mode=1777"},
		Mounts:    p.mounts(),
		Resources: container.Resources{Memory: r.MemoryBytes, MemorySwap: r.MemoryBytes, NanoCPUs: min(int64(r.CPUMillis)*1e6, int64(p.cpus)*1e9)},
	}
	switch p.spec.Network {
	case providers.NetworkFull:
		h.NetworkMode = container.NetworkMode(p.options.Network)
	case providers.NetworkProxy:
		// The agent is the name server, and listens on ports below 1024 without being
		// root. Newer daemons allow that by default; an operator's daemon may not.
		h.DNS = []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1})}
		h.Sysctls = map[string]string{"net.ipv4.ip_unprivileged_port_start": "0"}
	}
	if r.MaxProcesses > 0 {
		h.PidsLimit = new(int64(r.MaxProcesses))
	}
	if r.MaxProcesses > 0 && isGVisor(p.rec.Runtime) {
		// gVisor ends the sandbox if the cgroup refuses it a thread, and it has several
		// for each process inside. So it limits the processes of its user itself.
		h.PidsLimit = new(16*int64(r.MaxProcesses) + 1024)
		h.Ulimits = []*container.Ulimit{{Name: "nproc", Soft: int64(r.MaxProcesses), Hard: int64(r.MaxProcesses)}}
	}
	if p.options.GPUs != 0 {
		h.DeviceRequests = []container.DeviceRequest{{Count: p.options.GPUs, Capabilities: [][]string{{"gpu"}}}}
	}
	return h
}

func (p *plan) mounts() []mount.Mount {
	var out []mount.Mount
	for _, place := range image.Places {
		out = append(out, mount.Mount{
			Type: mount.TypeVolume, Source: volumeName(p.rec, place.Name), Target: place.At,
			VolumeOptions: &mount.VolumeOptions{Labels: p.labels()},
		})
	}
	if p.rec.Transport == TransportSocket {
		out = append(out, mount.Mount{Type: mount.TypeBind, Source: p.rec.socketIn(p.dir), Target: image.SocketDir})
	}
	return out
}

func volumeName(rec *record, place string) string { return "sandgate-" + rec.Disk + "-" + place }
