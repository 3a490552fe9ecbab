// Package agentbin holds the agent's executables, which the build puts into
// bin before it builds the server.
package agentbin

import (
	"embed"
	"fmt"
)

//go:embed all:bin
var files embed.FS

// Read returns the agent for an architecture in Go's words, such as "amd64".
func Read(arch string) ([]byte, error) {
	raw, err := files.ReadFile("bin/sandgate-agent-linux-" + arch)
	if err != nil {
		return nil, fmt.Errorf("this program was built without the agent for %s; build it with \"make build\", or give --agent", arch)
	}
	return raw, nil
}
