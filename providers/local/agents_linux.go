package local

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/providers/internal/atomicfile"
)

// acquireAgent installs the agent. Other servers don't remove it until the
// returned directory is closed.
func acquireAgent(config Config, l layout, readable bool) (path string, hold *os.File, err error) {
	for tries := 0; ; tries++ {
		if path, err = installAgent(config, l, readable); err == nil {
			hold, err = os.Open(filepath.Dir(path))
		}
		if errors.Is(err, os.ErrNotExist) && tries < 10 {
			continue // another server collected it meanwhile
		}
		if err != nil {
			return "", nil, err
		}
		if err := unix.Flock(int(hold.Fd()), unix.LOCK_SH); err != nil {
			return "", nil, errors.Join(fmt.Errorf("lock %s: %w", hold.Name(), err), hold.Close())
		}
		// Another server may have removed it before it was locked.
		locked, err := hold.Stat()
		if err != nil {
			return "", nil, errors.Join(err, hold.Close())
		}
		if there, err := os.Stat(hold.Name()); err == nil && os.SameFile(locked, there) && exists(path) {
			return path, hold, nil
		}
		_ = hold.Close()
	}
}

// collectAgents removes agents of other versions that neither a server nor a
// sandbox uses.
func (p *Provider) collectAgents(ctx context.Context) {
	entries, err := os.ReadDir(p.layout.agents())
	if err != nil {
		return
	}
	for _, e := range entries {
		dir := filepath.Join(p.layout.agents(), e.Name())
		if dir == filepath.Dir(p.agent) || p.agentInUse(dir) {
			continue
		}
		held, err := os.Open(dir)
		if err != nil {
			continue
		}
		if unix.Flock(int(held.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			// A server that needs it now installs it again.
			err = os.RemoveAll(dir)
			p.log.LogAttrs(ctx, slog.LevelInfo, "removed an unused agent", slog.String("agent", e.Name()), slog.Any("error", err))
		}
		_ = held.Close()
	}
}

// agentInUse reports whether a sandbox was, or may have been, started with the
// agent in a directory.
func (p *Provider) agentInUse(dir string) bool {
	for b, err := range p.layout.All() {
		if err != nil {
			return true
		}
		config, err := os.ReadFile(bundle(b).config())
		if err != nil && !os.IsNotExist(err) || bytes.Contains(config, []byte(dir)) {
			return true
		}
	}
	return false
}

// installAgent writes the agent to a file that is mounted into sandboxes. The
// file never changes: running sandboxes keep theirs.
func installAgent(config Config, l layout, readable bool) (string, error) {
	var data []byte
	var err error
	if config.AgentPath != "" {
		data, err = os.ReadFile(config.AgentPath)
	} else {
		data, err = config.Agent(runtime.GOARCH)
	}
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(data)
	dir, mode := filepath.Join(l.agents(), hex.EncodeToString(sum[:])), agentMode
	if readable {
		dir, mode = dir+"-readable", readableAgentMode
	}
	path := filepath.Join(dir, "sandgate-agent")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	// Compares all of the content: after a power cut the size may be right and
	// the content zeros.
	if there, err := os.ReadFile(path); err != nil || !bytes.Equal(there, data) {
		if err := atomicfile.WriteDurable(path, data, mode); err != nil {
			return "", err
		}
	}
	return path, os.Chmod(path, mode)
}

const (
	// agentMode lets the sandbox's user execute the agent and not read it. The
	// kernel refuses to trace a program that its user cannot read, from its
	// first instruction on: a command cannot take over "sandgate-agent connect"
	// before that makes itself undumpable.
	agentMode fs.FileMode = 0o711
	// gVisor loads only programs that their user may read. By socket there is no
	// "connect", and an agent that its user may read can raise the OOM score of its
	// commands, since the kernel gives it its own files in /proc.
	readableAgentMode fs.FileMode = 0o755
)
