package docker

import (
	"github.com/sandgate/sandgate/providers/internal/directory"
	shared "github.com/sandgate/sandgate/providers/internal/record"
)

// record is what the provider stores about a sandbox.
type record struct {
	directory.Base
	Disk string `json:"disk"` // begins the names of its volumes
	// Image is the sandbox's image by content: a digest of its registry, or the id
	// of an image that has none.
	Image        string    `json:"image"`
	Transport    Transport `json:"transport"`
	Unprivileged bool      `json:"unprivileged"`
}

type newSandbox = directory.New[*record]

func readRecord(d directory.Dir) (*record, error) { return shared.Read[record](d.Record()) }
