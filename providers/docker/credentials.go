package docker

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/distribution/reference"
	"github.com/moby/moby/api/pkg/authconfig"
	"github.com/moby/moby/api/types/registry"
)

// dockerHub is the key of Docker Hub's credentials.
const dockerHub = "https://index.docker.io/v1/"

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
	auth, err := parseCredentials(data, reference.Domain(ref))
	if err != nil || auth == nil {
		return "", err
	}
	return authconfig.Encode(*auth)
}

// parseCredentials returns the credentials for a registry, or nil. Its errors hold
// nothing of the file.
func parseCredentials(data []byte, domain string) (*registry.AuthConfig, error) {
	var file struct {
		Auths map[string]struct {
			Auth          string `json:"auth"`
			IdentityToken string `json:"identitytoken"`
		} `json:"auths"`
	}
	if json.Unmarshal(data, &file) != nil {
		return nil, errors.New("the configuration file of docker is malformed")
	}
	for _, key := range []string{domain, "https://" + domain, dockerHub} {
		entry, ok := file.Auths[key]
		if !ok || key == dockerHub && domain != "docker.io" {
			continue
		}
		plain, err := base64.StdEncoding.DecodeString(entry.Auth)
		user, password, found := strings.Cut(string(plain), ":")
		if err != nil || !found && entry.Auth != "" {
			return nil, fmt.Errorf("the configuration file of docker has malformed credentials for %s", domain)
		}
		if user == "" && entry.IdentityToken == "" {
			return nil, nil // a credential helper has them
		}
		return &registry.AuthConfig{Username: user, Password: strings.TrimRight(password, "\x00"), IdentityToken: entry.IdentityToken, ServerAddress: key}, nil
	}
	return nil, nil
}
