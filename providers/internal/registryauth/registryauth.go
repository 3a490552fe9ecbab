// Package registryauth reads credentials for registries from the file that "docker
// login" writes.
package registryauth

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
)

// Credentials are those for one registry.
type Credentials struct {
	Username, Password, IdentityToken string
	// Server is the key under which the file has them.
	Server string
}

// Parse returns the credentials for a registry, or nil. Credential helpers are not
// run. Errors hold nothing of the file.
func Parse(data []byte, domain string) (*Credentials, error) {
	var file struct {
		Auths map[string]struct {
			Auth          string `json:"auth"`
			IdentityToken string `json:"identitytoken"`
		} `json:"auths"`
	}
	if json.Unmarshal(data, &file) != nil {
		return nil, errors.New("the file of credentials is malformed")
	}
	for _, key := range []string{domain, "https://" + domain, authn.DefaultAuthKey} {
		entry, ok := file.Auths[key]
		if !ok || key == authn.DefaultAuthKey && domain != "docker.io" {
			continue
		}
		plain, err := base64.StdEncoding.DecodeString(entry.Auth)
		user, password, found := strings.Cut(string(plain), ":")
		if err != nil || !found && entry.Auth != "" {
			return nil, fmt.Errorf("the file of credentials has malformed ones for %s", domain)
		}
		if user == "" && entry.IdentityToken == "" {
			return nil, nil // a credential helper has them
		}
		return &Credentials{Username: user, Password: strings.TrimRight(password, "\x00"), IdentityToken: entry.IdentityToken, Server: key}, nil
	}
	return nil, nil
}
