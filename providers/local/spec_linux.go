package local

import (
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/local/oci"
	"github.com/sandgate/sandgate/providers/local/userid"
	"github.com/sandgate/sandgate/providers/local/userland"
)

// The agent's files inside a sandbox.
const (
	agentDir    = "/.sandgate"
	agentBinary = agentDir + "/agent"
	agentState  = agentDir + "/state"
	agentCgroup = agentDir + "/cgroup"
)

// plan holds everything that the container of a sandbox depends on.
type plan struct {
	id          string // the runtime's name for it
	runtime     *oci.Runtime
	bundle      bundle
	mountDir    mountDir
	rootDir     string // where its root is mounted
	spec        providers.Spec
	options     templateOptions
	incarnation string
	agent       string               // the agent's file on the host
	image       string               // an unpacked image; empty: the host's userland
	layer       string               // the sandbox's own layer of its root
	lower       []string             // layers of the root below
	shared      []userland.SharedDir // each mounted through an overlay
	etc         map[string]string    // the sandbox's own files, by path
	readOnly    bool
	disk        string          // where the writable directories are while it starts
	uid, gid    uint32          // of its processes, as they see them
	owner       userid.Owner    // the same on the host
	system      userid.Owner    // root inside, on the host
	mapping     *userid.Mapping // of its user namespace; nil: it has none
	namespace   <-chan namespace
	user        userid.User // the user for which the root was made
	home        string
	env         map[string]string
	workdir     string
	cgroup      string // delegated to the agent; empty: none
	cgroupPath  string
	swapLimit   bool
	socket      bool // the agent gets a listening socket
	listen      string
}

// container makes the OCI configuration.
func (p *plan) container() (s *specs.Spec, err error) {
	s = &specs.Spec{
		Version:  "1.0.2",
		Hostname: userland.Hostname,
		Root:     &specs.Root{Path: p.rootDir, Readonly: p.readOnly},
		Process:  p.process(p.serve()),
		Mounts:   p.mounts(),
		Linux: &specs.Linux{
			CgroupsPath:       p.cgroupPath,
			Namespaces:        p.namespaces(),
			Resources:         p.resources(),
			Sysctl:            p.sysctls(),
			RootfsPropagation: "private",
			MaskedPaths:       maskedPaths,
			ReadonlyPaths:     readonlyPaths,
		},
	}
	if p.mapping != nil {
		p.runtime.JoinUserNamespace(s, p.mountDir.userNamespace(), p.mapping.UIDs, p.mapping.GIDs)
	}
	if s.Linux.Seccomp, err = p.runtime.Seccomp(s, p.startsInCgroup()); err != nil {
		return nil, fmt.Errorf("seccomp profile: %w", err)
	}
	return s, nil
}

func (p *plan) serve() []string {
	args := []string{agentBinary, "serve", "--incarnation", p.incarnation, "--workdir", p.workdir, "--state-dir", agentState}
	if p.socket {
		// Only an inherited socket: a command could connect to any other.
		args = append(args, "--listen-fd", "3")
	} else {
		args = append(args, "--listen", p.listen)
	}
	if p.cgroup != "" {
		args = append(args, "--cgroup", agentCgroup)
	}
	if p.spec.Network == providers.NetworkProxy {
		args = append(args, "--egress")
	}
	if p.startsInCgroup() {
		args = append(args, "--refuse-clone3")
	}
	return args
}

// startsInCgroup reports whether the agent starts commands directly in their
// cgroups by clone3; moving them there costs some 10 ms after every pause. Only
// the agent may then use clone3: it denies it to commands by a filter of its
// own. Processes that the runtime's exec starts have no such filter, so clone3
// stays denied there.
func (p *plan) startsInCgroup() bool { return p.cgroup != "" && !p.runtime.GVisor && p.socket }

// connect is the process that joins standard input and output to the agent.
func (p *plan) connect() *specs.Process {
	proc := p.process([]string{agentBinary, "connect", "--to", p.listen})
	// The environment of the request is for commands only.
	proc.Env = []string{"PATH=" + userland.Path}
	proc.Cwd = "/"
	return proc
}

func (p *plan) process(args []string) *specs.Process {
	proc := &specs.Process{
		User:            specs.User{UID: p.uid, GID: p.gid},
		Args:            args,
		Env:             p.environment(),
		Cwd:             "/",
		NoNewPrivileges: true,
		// An empty set, which drops all; a missing one leaves it to the runtime.
		Capabilities: &specs.LinuxCapabilities{},
		OOMScoreAdj:  oomScore(),
		Rlimits: []specs.POSIXRlimit{
			rlimit("RLIMIT_NOFILE", unix.RLIMIT_NOFILE, 65536),
			// With 0 the kernel would still start a core_pattern that is a
			// program.
			rlimit("RLIMIT_CORE", unix.RLIMIT_CORE, 1),
			rlimit("RLIMIT_MEMLOCK", unix.RLIMIT_MEMLOCK, 64<<10),
		},
	}
	if p.options.Root {
		c := proc.Capabilities
		c.Bounding, c.Effective, c.Permitted = oci.RootCapabilities, oci.RootCapabilities, oci.RootCapabilities
	}
	if p.mapping != nil {
		limitItself(proc)
	}
	if most := p.spec.Resources.MaxProcesses; p.runtime.GVisor && most > 0 {
		// gVisor counts a user's processes and threads per sandbox; the host's
		// kernel would count those of all sandboxes together. Unlike gVisor's
		// pids controller this limit includes exiting processes.
		proc.Rlimits = append(proc.Rlimits, specs.POSIXRlimit{Type: "RLIMIT_NPROC", Soft: uint64(most), Hard: uint64(most)})
	}
	return proc
}

// rlimit sets no more than this process has: raising a limit needs
// CAP_SYS_RESOURCE.
func rlimit(name string, resource int, want uint64) specs.POSIXRlimit {
	var own unix.Rlimit
	if err := unix.Getrlimit(resource, &own); err == nil {
		want = min(want, own.Max)
	}
	return specs.POSIXRlimit{Type: name, Soft: want, Hard: want}
}

// oomScore keeps a sandbox from inheriting a server's protection from the OOM
// killer. A score of 0 and above is inherited, because a sandbox may raise it
// but never lower it.
func oomScore() *int {
	data, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil {
		return nil
	}
	if own, err := strconv.Atoi(strings.TrimSpace(string(data))); err != nil || own >= 0 {
		return nil
	}
	return new(int)
}

func (p *plan) environment() []string {
	env := map[string]string{"PATH": userland.Path, "HOME": p.home, "LANG": "C.UTF-8"}
	for _, from := range []map[string]string{p.env, p.spec.Env} {
		for k, v := range from {
			env[k] = v
		}
	}
	out := make([]string, 0, len(env))
	for k, v := range env {
		out = append(out, k+"="+v)
	}
	sort.Strings(out)
	return out
}

func (p *plan) namespaces() []specs.LinuxNamespace {
	out := []specs.LinuxNamespace{
		{Type: specs.PIDNamespace}, {Type: specs.MountNamespace}, {Type: specs.IPCNamespace},
		{Type: specs.UTSNamespace}, {Type: specs.CgroupNamespace},
	}
	if p.spec.Network != providers.NetworkFull {
		// A new network namespace; the runtime brings its loopback up.
		out = append(out, specs.LinuxNamespace{Type: specs.NetworkNamespace})
	}
	return out
}

// maxTerminals is the maximum number of terminals of a sandbox.
const maxTerminals = 256

func (p *plan) mounts() []specs.Mount {
	own := []string{"mode=755", fmt.Sprintf("uid=%d,gid=%d", p.uid, p.gid)}
	if p.runtime.GVisor {
		// gVisor's tmpfs always belongs to root.
		own = []string{"mode=1777"}
	}
	terminals := []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"}
	if !p.runtime.GVisor {
		// The machine has a few thousand in all.
		terminals = append(terminals, "max="+strconv.Itoa(maxTerminals))
	}
	out := []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
		{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: terminals},
		{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: []string{"nosuid", "noexec", "nodev", "mode=1777", "size=65536k"}},
		{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/run", Type: "tmpfs", Source: "run", Options: append([]string{"nosuid", "nodev", "size=16384k"}, own...)},
		p.sysfs(),
		// Programs read their limits here, and the agent the count of processes
		// that the OOM killer ended.
		{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: []string{"nosuid", "noexec", "nodev", "relatime", "ro"}},
	}
	for i, dir := range p.shared {
		out = append(out, readOnly(p.mountDir.shared(i), dir.Target))
	}
	for _, pl := range writableDirs {
		if pl.target != "" {
			out = append(out, specs.Mount{
				Type: "bind", Source: filepath.Join(p.disk, pl.dir), Destination: pl.target,
				Options: []string{"bind", "rw", "nosuid", "nodev", "rprivate"},
			})
		}
	}
	if p.cgroup != "" {
		out = append(out, specs.Mount{
			Type: "bind", Source: p.cgroup, Destination: agentCgroup,
			Options: []string{"bind", "rw", "nosuid", "nodev", "noexec", "rprivate"},
		})
	}
	return out
}

func (p *plan) sysfs() specs.Mount {
	m := specs.Mount{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}}
	if p.ownSysfs() {
		m.Type, m.Source, m.Options = "bind", p.mountDir.sysfs(), append(m.Options, "bind", "rprivate")
	}
	return m
}

// ownSysfs reports whether the provider mounts sysfs: a user namespace cannot mount one
// that shows the host's network.
func (p *plan) ownSysfs() bool { return p.mapping != nil && p.spec.Network == providers.NetworkFull }

// sysctls limit the buffers of a connection. Cgroups of version 1 do not
// account them, and all sandboxes and the host share one budget. With the network
// mode PROXY the agent, which is not root, listens on ports below 1024.
func (p *plan) sysctls() map[string]string {
	if p.runtime.GVisor || p.spec.Network == providers.NetworkFull {
		return nil
	}
	all := map[string]string{"net.ipv4.tcp_rmem": "4096 131072 262144", "net.ipv4.tcp_wmem": "4096 16384 262144"}
	if p.spec.Network == providers.NetworkProxy {
		all["net.ipv4.ip_unprivileged_port_start"] = "0"
	}
	return all
}

func (p *plan) resources() *specs.LinuxResources {
	out := &specs.LinuxResources{Devices: deviceRules()}
	r := p.spec.Resources
	if r.MemoryBytes > 0 {
		out.Memory = &specs.LinuxMemory{Limit: &r.MemoryBytes}
		if p.swapLimit {
			// The limit on memory and swap together: no swap at all.
			out.Memory.Swap = &r.MemoryBytes
		}
	}
	if r.CPUMillis > 0 {
		period := uint64(100_000)
		quota := int64(r.CPUMillis) * 100
		out.CPU = &specs.LinuxCPU{Period: &period, Quota: &quota}
	}
	if r.MaxProcesses > 0 {
		limit := int64(r.MaxProcesses)
		if p.runtime.GVisor {
			limit = oci.GVisorTasks(limit)
		}
		out.Pids = &specs.LinuxPids{Limit: &limit}
	}
	return out
}

// deviceRules denies all devices; the runtime adds those that every container
// has (null, zero, full, random, urandom, tty, ptmx, terminals).
func deviceRules() []specs.LinuxDeviceCgroup {
	return []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}
}

// The paths that containerd masks or write-protects by default, and those that
// show block devices: other sandboxes' disks, by name and activity.
var (
	maskedPaths = []string{
		"/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list",
		"/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap",
		"/proc/diskstats", "/proc/fs", "/proc/partitions",
		"/sys/block", "/sys/class/block", "/sys/dev/block", "/sys/devices/virtual/block", "/sys/fs/ext4",
	}
	readonlyPaths = []string{"/proc/bus", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
)

func readOnly(source, target string) specs.Mount {
	return specs.Mount{
		Type: "bind", Source: source, Destination: target,
		Options: []string{"rbind", "ro", "nosuid", "nodev", "rprivate"},
	}
}
