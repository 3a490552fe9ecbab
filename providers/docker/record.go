package docker

import (
	"cmp"

	"github.com/sandgate/sandgate/providers/internal/directory"
	shared "github.com/sandgate/sandgate/providers/internal/record"
)

// record is what the provider stores about a sandbox.
type record struct {
	directory.Base
	Disk string `json:"disk"` // begins the names of its volumes
	// Socket is the name of the directory of the agent's socket, in the sandbox's. It is
	// random, so that a daemon that can mount it shares this machine's file system.
	// Sandboxes of older servers have none.
	Socket string `json:"socket,omitempty"`
	// Image is the sandbox's image by content: a digest of its registry, or the id
	// of an image that has none.
	Image        string    `json:"image"`
	Transport    Transport `json:"transport"`
	Unprivileged bool      `json:"unprivileged"`
}

type newSandbox = directory.New[*record]

func readRecord(d directory.Dir) (*record, error) { return shared.Read[record](d.Record()) }

// socketIn is the directory of the agent's socket. The container has it as a bind mount,
// which a rename of the sandbox's directory does not change. The sandbox's user can write
// to it, so other users of this machine must not get there.
func (r *record) socketIn(d directory.Dir) string { return d.Path(cmp.Or(r.Socket, "socket")) }

const socketName = "agent.sock"
