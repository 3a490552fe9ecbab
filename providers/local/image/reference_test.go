//go:build linux

package image

import (
	"errors"
	"path/filepath"
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
	for _, in := range []string{"", "debian", "docker.io/library/debian:12", "oci:relative", "oci", "http://x/y"} {
		if got, err := Parse(in); !errors.Is(err, providers.ErrUnsupported) {
			t.Errorf("%q: %+v, %v", in, got, err)
		}
	}
	for _, in := range []string{"oci:/a/../b", "oci:/..", "oci-archive:/a/..:v1"} {
		if got, err := Parse(in); !errors.Is(err, providers.ErrInvalid) {
			t.Errorf("%q: %+v, %v", in, got, err)
		}
	}
}

func FuzzParseReference(f *testing.F) {
	for _, s := range []string{"oci:/a:b", "docker-archive:/a.tar:b/c:d", "oci-archive:/", ":/", "oci:/:"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if r, err := Parse(s); err == nil && !filepath.IsAbs(r.path) {
			t.Errorf("%q: path %q", s, r.path)
		}
	})
}
