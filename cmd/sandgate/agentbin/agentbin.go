// Package agentbin holds the agent's executables, which the build puts into
// bin before it builds the server.
package agentbin

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
)

//go:embed all:bin
var files embed.FS

// beside is the name of the agent that "go install" puts beside the server.
const beside = "sandgate-agent"

// Read returns the agent for an architecture in Go's words, such as "amd64". A server that
// was built without it, as by "go install", reads the file sandgate-agent beside its own:
// that one is for the server's own system and architecture.
func Read(arch string) ([]byte, error) {
	return read(files, arch, runtime.GOOS+"/"+runtime.GOARCH, os.Executable)
}

func read(embedded fs.FS, arch, server string, executable func() (string, error)) ([]byte, error) {
	raw, err := fs.ReadFile(embedded, "bin/sandgate-agent-linux-"+arch)
	if err == nil {
		return raw, nil
	}
	if server == "linux/"+arch {
		own, err := executable()
		if err != nil {
			return nil, fmt.Errorf("find this program's own file: %w", err)
		}
		if own, err = filepath.EvalSymlinks(own); err != nil {
			return nil, err
		}
		raw, err := os.ReadFile(filepath.Join(filepath.Dir(own), beside))
		if err == nil || !errors.Is(err, fs.ErrNotExist) {
			return raw, err
		}
	}
	return nil, fmt.Errorf("this program was built without the agent for %s; build it with \"make build\", "+
		"put the program %s for it beside this one, or give --agent", arch, beside)
}
