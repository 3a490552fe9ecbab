package local

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/local/image"
	"github.com/sandgate/sandgate/providers/local/oci"
	"github.com/sandgate/sandgate/providers/local/userid"
)

// Profile is how much of the machine the agent may use.
type Profile string

// The profiles.
const (
	// ProfileDefault gives the agent a cgroup of its own, in which it keeps one
	// cgroup per command.
	ProfileDefault Profile = "default"
	// ProfileRestricted gives the agent the rights of a pod under Kubernetes'
	// "restricted" pod security standard: no writable cgroup.
	ProfileRestricted Profile = "restricted"
)

// Transport is how the server reaches the agent.
type Transport string

// The transports.
const (
	// TransportSocket connects to a unix socket that the provider made and the agent
	// listens on.
	TransportSocket Transport = "socket"
	// TransportExec starts "sandgate-agent connect" inside with the runtime's exec and
	// speaks through its standard input and output.
	TransportExec Transport = "exec"
)

// Config configures a Provider.
type Config struct {
	// StateDir is required: the absolute path of a directory for all state that
	// must survive the server. Only root can read it.
	StateDir string
	// Runtime is an OCI runtime's name or path. One whose name begins with "runsc"
	// is gVisor. Default: "runc".
	Runtime string
	// Profile: default ProfileDefault.
	Profile Profile
	// Transport: default TransportSocket; with gVisor TransportExec, the only one that it
	// supports.
	Transport Transport
	// Agent returns the agent's executable for an architecture such as "amd64".
	// Required.
	Agent func(arch string) ([]byte, error)
	// CgroupParent is the cgroup, relative to the root of every hierarchy, below
	// which sandboxes get theirs. Default: "/sandgate".
	CgroupParent string
	// MaxMemory and MaxProcesses limit all sandboxes below CgroupParent together.
	// Defaults: the machine's memory less a tenth of it, at least 512 MiB, and
	// half of the processes that the kernel allows. Negative: no limit.
	MaxMemory, MaxProcesses int64
	// MinFree is the free space of the state directory's file system, in bytes,
	// below which no sandbox is created. Default: a twentieth of it, at most
	// 2 GiB. Negative: none.
	MinFree int64
	// DiskOvercommit is how many times the sizes of all sandboxes' disks together
	// may exceed the space for them. With 1, no sandbox can lack space because of
	// another. Default: 10. Negative: no limit.
	DiskOvercommit float64
	// UIDBase is the first of the 65536 user and group ids under which sandboxes
	// run, one for each without root. Default: 2031616.
	UIDBase uint32
	// Registries are where images by name come from.
	Registries image.Registries
	// Logger: default slog.Default().
	Logger *slog.Logger

	// fault, if set, is called before each step of a creation, claim or
	// removal. Tests use it to let steps fail or hang.
	fault func(ctx context.Context, step string) error
}

// defaultOvercommit: disks are sparse, and most of them stay nearly empty.
const defaultOvercommit = 10

// DefaultResources returns the limits of a sandbox whose template states none.
func DefaultResources() providers.Resources {
	return providers.Resources{MemoryBytes: 1 << 30, CPUMillis: 2000, MaxProcesses: 1024, DiskBytes: 4 << 30}
}

// Check returns an error if New would refuse c on every machine, and otherwise what
// checks the options of templates.
func Check(c Config) (providers.OptionsChecker, error) {
	_, err := c.withDefaults()
	return (*Provider)(nil), err
}

func (c Config) withDefaults() (Config, error) {
	if !filepath.IsAbs(c.StateDir) {
		return c, fmt.Errorf("state directory %q is not an absolute path: %w", c.StateDir, providers.ErrInvalid)
	}
	c.StateDir = filepath.Clean(c.StateDir)
	if c.Runtime == "" {
		c.Runtime = "runc"
	}
	if c.Profile == "" {
		c.Profile = ProfileDefault
	}
	if c.Transport == "" {
		c.Transport = TransportSocket
		if oci.IsGVisor(c.Runtime) {
			c.Transport = TransportExec
		}
	}
	if c.CgroupParent == "" {
		c.CgroupParent = "/sandgate"
	}
	if c.DiskOvercommit == 0 {
		c.DiskOvercommit = defaultOvercommit
	}
	if c.UIDBase == 0 {
		c.UIDBase = userid.DefaultBase
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	switch {
	case c.Profile != ProfileDefault && c.Profile != ProfileRestricted:
		return c, fmt.Errorf("profile %q is neither %q nor %q: %w", c.Profile, ProfileDefault, ProfileRestricted, providers.ErrInvalid)
	case c.Transport != TransportSocket && c.Transport != TransportExec:
		return c, fmt.Errorf("transport %q is neither %q nor %q: %w", c.Transport, TransportSocket, TransportExec, providers.ErrInvalid)
	case c.Transport == TransportSocket && oci.IsGVisor(c.Runtime):
		return c, fmt.Errorf("runtime %q cannot use a socket of the host in a sandbox: use transport %q or leave it out: %w", c.Runtime, TransportExec, providers.ErrInvalid)
	case !filepath.IsAbs(c.CgroupParent) || filepath.Clean(c.CgroupParent) == "/":
		return c, fmt.Errorf("cgroup parent %q is not an absolute path below the root: %w", c.CgroupParent, providers.ErrInvalid)
	case c.DiskOvercommit > 0 && c.DiskOvercommit < 1:
		return c, fmt.Errorf("disk overcommit %v is less than 1: %w", c.DiskOvercommit, providers.ErrInvalid)
	case c.UIDBase < userid.Unmapped || c.UIDBase > userid.RangeBase-userid.Count:
		return c, fmt.Errorf("uid base %d: the %d ids from there must be between %d and %d: %w", c.UIDBase, userid.Count, userid.Unmapped, userid.RangeBase-1, providers.ErrInvalid)
	case c.Agent == nil:
		return c, errors.New("no agent executable is configured")
	}
	c.CgroupParent = filepath.Clean(c.CgroupParent)
	return c, c.Registries.Check()
}
