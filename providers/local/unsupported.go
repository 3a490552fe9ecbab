//go:build !linux

package local

import (
	"context"
	"fmt"

	"github.com/sandgate/sandgate/providers"
)

// Provider does not exist on this system.
type Provider struct{ providers.Provider }

// New returns an error that wraps providers.ErrUnsupported: this provider needs
// Linux.
func New(context.Context, Config) (*Provider, error) {
	return nil, fmt.Errorf("the local provider needs Linux; use the docker or kubernetes provider here: %w", providers.ErrUnsupported)
}
