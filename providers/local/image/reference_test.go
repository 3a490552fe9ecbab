//go:build linux

package image

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandgate/sandgate/providers"
)

func TestParseReference(t *testing.T) {
	for in, want := range map[string]Reference{
		"oci:/images/base":                         {kind: "oci", path: "/images/base"},
		"oci:/images/base:v1":                      {kind: "oci", path: "/images/base", tag: "v1"},
		"oci-archive:/a:b/base.tar":                {kind: "oci-archive", path: "/a:b/base.tar"},
		"docker-archive:/base.tar":                 {kind: "docker-archive", path: "/base.tar"},
		"docker-archive:/base.tar:example.org/b:1": {kind: "docker-archive", path: "/base.tar", tag: "example.org/b:1"},
	} {
		if got, err := Parse(in); err != nil || got != want {
			t.Errorf("%s: %+v, %v", in, got, err)
		}
	}
	const sum = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	for in, want := range map[string]string{
		"debian": "docker.io/library/debian:latest", "docker.io/library/debian:12": "docker.io/library/debian:12", "oci": "docker.io/library/oci:latest",
		"localhost:5000/a": "localhost:5000/a:latest", "r.example/a/b@" + sum: "r.example/a/b@" + sum, "r.example/a:1@" + sum: "r.example/a:1@" + sum,
	} {
		got, err := Parse(in)
		if err != nil || !got.InRegistry() || got.name.String() != want || got.pinned() != strings.HasSuffix(want, sum) {
			t.Errorf("%s: %v, %v", in, got.name, err)
		}
	}
	for _, in := range []string{"oci:/a/../b", "oci:/..", "oci-archive:/a/..:v1", "", "oci:relative", "oci:", "http://x/y", "UPPER", "a:b:c", "a@sha512:" + strings.Repeat("0", 128), "r.example/../a"} {
		if got, err := Parse(in); !errors.Is(err, providers.ErrInvalid) {
			t.Errorf("%q: %+v, %v", in, got, err)
		}
	}
}

func FuzzParseReference(f *testing.F) {
	for _, s := range []string{"a/b:c", "oci:/a:b", "docker-archive:/a.tar:b/c:d", "oci-archive:/", ":/", "oci:/:"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if r, err := Parse(s); err == nil && filepath.IsAbs(r.path) == r.InRegistry() {
			t.Errorf("%q: %+v", s, r)
		}
	})
}
