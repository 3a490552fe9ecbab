package image

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/distribution/reference"

	"github.com/sandgate/sandgate/providers"
)

func TestParse(t *testing.T) {
	for name, want := range map[string]string{
		"debian": "docker.io/library/debian:latest", "registry.example/a/b:1": "registry.example/a/b:1", "localhost:5000/x": "localhost:5000/x:latest",
	} {
		if got, err := Parse(name); err != nil || got.String() != want {
			t.Errorf("%s: %v, %v, want %s", name, got, err, want)
		}
	}
	for _, bad := range []string{"", "Debian", "a b", "oci:/dir", "-v"} {
		if got, err := Parse(bad); !errors.Is(err, providers.ErrInvalid) {
			t.Errorf("%q: %v, %v", bad, got, err)
		}
	}
}

func TestLayer(t *testing.T) {
	for name, c := range map[string]struct {
		uid  int
		mode int64
	}{"1000:1000": {1000, 0o755}, "nobody": {0, 0o1777}} {
		content, err := layer([]byte("agent"), ParseUser(name))
		if err != nil {
			t.Fatal(err)
		}
		seen := map[string]*tar.Header{}
		r := tar.NewReader(bytes.NewReader(content.Bytes()))
		for {
			h, err := r.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			seen["/"+strings.TrimSuffix(h.Name, "/")] = h
		}
		for _, place := range Places {
			if seen[place.At] == nil {
				t.Errorf("%s: no %s", name, place.At)
			}
		}
		if h := seen[WorkingDir]; h.Uid != c.uid || h.Mode != c.mode {
			t.Errorf("%s: %s is of %d, mode %o", name, WorkingDir, h.Uid, h.Mode)
		}
		if h := seen[AgentPath]; h == nil || h.Uid != 0 || h.Mode != 0o755 || h.Size != 5 {
			t.Errorf("%s: the agent is %+v", name, h)
		}
	}
}

func TestUsers(t *testing.T) {
	for name, root := range map[string]bool{"": true, "0": true, "00:1": true, "root": true, "root:users": true, "0:0": true, "1000:1000": false, "nobody": false} {
		if got := ParseUser(name).Root; got != root {
			t.Errorf("user %q is root: %v", name, got)
		}
	}
}

func TestCredentials(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	ref, err := reference.ParseNormalizedNamed("debian")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := credentials(ref); got != "" || err != nil {
		t.Errorf("without a file: %q, %v", got, err)
	}
}
