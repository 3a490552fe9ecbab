//go:build docker

package docker

import (
	"errors"
	"net/http"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/moby/moby/client"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/providertest"
	"github.com/sandgate/sandgate/test/upstream"
)

// The daemon pulls from a registry that wants a password, with that of the file of
// "docker login".
func TestPullWithCredentials(t *testing.T) {
	store := upstream.ServeRegistry(t)
	image := store.Host + "/team/private:1"
	img := privateImage(t)
	to, err := name.ParseReference(image)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	store.Login(t)
	if err := remote.Write(to, img, remote.WithTransport(transport), remote.WithAuthFromKeychain(authn.DefaultKeychain)); err != nil {
		t.Fatal(err)
	}
	want, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	p := open(t, testConfig(t))
	closeLater(t, p)
	spec := testSpec("sg-private")
	spec.Image = image
	if _, err := providertest.Create(t.Context(), p, "sg-private", spec); !errors.Is(err, providers.ErrStartFailed) {
		t.Errorf("without credentials: %v", err)
	}
	store.Login(t)
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
