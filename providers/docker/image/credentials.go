package image

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/distribution/reference"
	"github.com/moby/moby/api/pkg/authconfig"
	"github.com/moby/moby/api/types/registry"

	"github.com/sandgate/sandgate/providers/internal/registryauth"
)

// credentials returns the header for an image's registry from the file that "docker
// login" writes. It is empty without credentials. Credential helpers are not run.
func credentials(ref reference.Named) (string, error) {
	dir := os.Getenv("DOCKER_CONFIG")
	if dir == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", nil
		}
		dir = filepath.Join(home, ".docker")
	}
	data, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("credentials: %w", err)
	}
	found, err := registryauth.Parse(data, reference.Domain(ref))
	if err != nil || found == nil {
		return "", err
	}
	return authconfig.Encode(registry.AuthConfig{
		Username: found.Username, Password: found.Password, IdentityToken: found.IdentityToken, ServerAddress: found.Server,
	})
}
