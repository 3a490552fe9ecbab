package docker

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"

	"github.com/sandgate/sandgate/providers"
)

// DefaultImage is the image of a sandbox whose template and request name none.
const DefaultImage = "docker.io/library/python:3.12-slim"

// Transport is how the server reaches the agent.
type Transport string

// The transports.
const (
	// TransportAuto takes TransportSocket where this machine can, else
	// TransportExec.
	TransportAuto Transport = "auto"
	// TransportSocket connects to a unix socket in a directory that is mounted into
	// the container. It needs Linux, root, and a daemon that shares this machine's
	// file system.
	TransportSocket Transport = "socket"
	// TransportExec runs "sandgate-agent connect" inside by an exec, whose stream is
	// the connection.
	TransportExec Transport = "exec"
)

// Config configures a Provider.
type Config struct {
	// StateDir is required: the absolute path of a directory for the records. Servers
	// that share it share their sandboxes. Other users cannot read it.
	StateDir string
	// Host is the daemon's address, such as "unix:///var/run/docker.sock". Default:
	// what DOCKER_HOST and the variables beside it say, else the platform's default.
	Host string
	// Image is for sandboxes that name none. Default: DefaultImage.
	Image string
	// Transport: default TransportAuto.
	Transport Transport
	// Agent returns the agent's executable for an architecture such as "amd64".
	Agent func(arch string) ([]byte, error)
	// Logger: default slog.Default().
	Logger *slog.Logger
}

// DefaultResources returns the limits of a sandbox whose template states none.
func DefaultResources() providers.Resources {
	return providers.Resources{MemoryBytes: 1 << 30, CPUMillis: 2000, MaxProcesses: 1024}
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
	if c.Image == "" {
		c.Image = DefaultImage
	}
	if c.Transport == "" {
		c.Transport = TransportAuto
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	switch c.Transport {
	case TransportAuto, TransportExec, TransportSocket:
	default:
		return c, fmt.Errorf("transport %q is none of %q, %q and %q: %w", c.Transport, TransportAuto, TransportSocket, TransportExec, providers.ErrInvalid)
	}
	if c.Agent == nil {
		return c, errors.New("no agent executable is configured")
	}
	return c, nil
}
