package local

import (
	"github.com/sandgate/sandgate/providers/internal/directory"
	shared "github.com/sandgate/sandgate/providers/internal/record"
	"github.com/sandgate/sandgate/providers/local/oci"
)

// record is what the provider stores about a sandbox.
type record struct {
	directory.Base
	Init      oci.Process `json:"init"`
	Helper    oci.Process `json:"helper,omitzero"` // that ends after Init: gVisor's file server
	Loop      string      `json:"loop,omitempty"`  // such as "/dev/loop3"
	Transport Transport   `json:"transport"`
	Profile   Profile     `json:"profile"`
	UID       uint32      `json:"uid,omitempty"`       // of its processes and its group, or the first of its range
	Root      bool        `json:"root,omitempty"`      // it has root, with a range of ids
	Namespace bool        `json:"namespace,omitempty"` // it has a user namespace
	Listen    string      `json:"listen"`              // where connect finds the agent
	Image     string      `json:"image,omitempty"`     // the digest under which it is unpacked
	Tree      string      `json:"tree,omitempty"`      // the name of the generated tree in its root; empty: may be any
}

type newSandbox = directory.New[*record]

func readRecord(d directory.Dir) (*record, error) { return shared.Read[record](d.Record()) }
