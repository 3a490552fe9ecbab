package local

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"github.com/sandgate/sandgate/providers/internal/atomicfile"
)

// acquireAgent installs the agent and holds its directory. The file is mounted into
// sandboxes and never changes: running sandboxes keep theirs.
func acquireAgent(config Config, l layout, readable bool) (path string, h held, err error) {
	data, err := config.Agent(runtime.GOARCH)
	if err != nil {
		return "", nil, err
	}
	sum := sha256.Sum256(data)
	dir, mode := filepath.Join(l.agents(), hex.EncodeToString(sum[:])), agentMode
	if readable {
		dir, mode = dir+"-readable", readableAgentMode
	}
	h, err = hold(func() ([]string, error) { return []string{dir}, os.MkdirAll(dir, 0o700) })
	if err != nil {
		return "", nil, err
	}
	path = filepath.Join(dir, "sandgate-agent")
	if err := installAgent(path, data, mode); err != nil {
		return "", nil, errors.Join(err, h.Close())
	}
	return path, h, nil
}

// installAgent compares all of the content: after a power cut the size may be right
// and the content zeros.
func installAgent(path string, data []byte, mode fs.FileMode) error {
	if there, err := os.ReadFile(path); err != nil || !bytes.Equal(there, data) {
		if err := atomicfile.WriteDurable(path, data, mode); err != nil {
			return err
		}
	}
	return os.Chmod(path, mode)
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
