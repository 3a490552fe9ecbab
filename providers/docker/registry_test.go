//go:build docker

package docker

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/moby/moby/client"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/providertest"
)

// The daemon pulls from a registry that wants a password, with that of the file of
// "docker login".
func TestPullWithCredentials(t *testing.T) {
	const user, password = "robot", "pass:word"
	content := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if u, p, _ := r.BasicAuth(); u != user || p != password {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			http.Error(w, "no", http.StatusUnauthorized)
			return
		}
		content.ServeHTTP(w, r)
	}))
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "http://")
	image := host + "/team/private:1"
	img := privateImage(t)
	to, err := name.ParseReference(image)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	if err := remote.Write(to, img, remote.WithTransport(transport), remote.WithAuth(&authn.Basic{Username: user, Password: password})); err != nil {
		t.Fatal(err)
	}
	want, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	t.Setenv("DOCKER_CONFIG", dir)
	p := open(t, testConfig(t))
	closeLater(t, p)
	spec := testSpec("sg-private")
	spec.Image = image
	if _, err := providertest.Create(t.Context(), p, "sg-private", spec); !errors.Is(err, providers.ErrStartFailed) {
		t.Errorf("without credentials: %v", err)
	}
	auth := base64.StdEncoding.EncodeToString([]byte(user + ":" + password))
	if err := os.WriteFile(filepath.Join(dir, "config.json"), fmt.Appendf(nil, `{"auths": {%q: {"auth": %q}}}`, host, auth), 0o600); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if _, err := p.docker.ImageRemove(t.Context(), image, client.ImageRemoveOptions{Force: true}); err != nil {
			t.Error(err)
		}
	}()
	if info := create(t, p, "sg-private", spec); info.ImageDigest != want.String() {
		t.Errorf("it has %q instead of %s", info.ImageDigest, want)
	}
	if err := p.Delete(t.Context(), "sg-private", providers.Condition{}); err != nil {
		t.Error(err)
	}
}

// privateImage has nothing but its configuration: the agent brings all that it needs.
func privateImage(t *testing.T) v1.Image {
	t.Helper()
	file, err := empty.Image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Config.Env = "linux", "amd64", []string{"PRIVATE=yes"}
	img, err := mutate.ConfigFile(empty.Image, file)
	if err != nil {
		t.Fatal(err)
	}
	return img
}
