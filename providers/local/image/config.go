package image

import (
	"fmt"

	"github.com/google/go-containerregistry/pkg/name"

	"github.com/sandgate/sandgate/providers"
)

// Policy is when an image is pulled.
type Policy string

// The policies. The empty one is PullMissing.
const (
	// PullMissing pulls a name once, and then uses that image while it is kept.
	PullMissing Policy = "missing"
	// PullAlways asks the registry for each sandbox which image a tag means.
	PullAlways Policy = "always"
	// PullNever uses only what is on this machine.
	PullNever Policy = "never"
)

// Registry configures the access to one registry.
type Registry struct {
	// Name is the registry as references name it: HOST or HOST:PORT.
	Name string
	// Mirrors are tried before the registry, in this order.
	Mirrors []string
	// PlainHTTP allows HTTP without TLS, which loopback addresses may always use.
	PlainHTTP bool
}

// Registries are where images by name come from.
type Registries struct {
	// AuthFile is a file of credentials in the format of "docker login". Empty: the
	// default files of Docker and Podman, with their credential helpers.
	AuthFile string
	// Known lists registries that need more than their name.
	Known []Registry
}

// Check returns an error that wraps ErrInvalid if a name is malformed.
func (r Registries) Check() error {
	for _, known := range r.Known {
		for _, host := range append([]string{known.Name}, known.Mirrors...) {
			if _, err := name.NewRegistry(host, name.StrictValidation); err != nil {
				return fmt.Errorf("registry %q: the name must be HOST or HOST:PORT: %w: %w", host, err, providers.ErrInvalid)
			}
		}
	}
	return nil
}
