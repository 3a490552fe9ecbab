// Package image reads container images, unpacks each once, and removes those that
// are no longer used.
package image

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sandgate/sandgate/providers"
)

// Reference is the location of an image.
type Reference struct {
	kind string // oci, oci-archive or docker-archive
	path string
	tag  string
}

// Parse reads "oci:/layout[:tag]", "oci-archive:/file.tar[:tag]" and
// "docker-archive:/file.tar[:tag]".
func Parse(ref string) (Reference, error) {
	kind, rest, ok := strings.Cut(ref, ":")
	switch kind {
	case "oci", "oci-archive", "docker-archive":
	default:
		ok = false
	}
	if !ok || !strings.HasPrefix(rest, "/") {
		return Reference{}, fmt.Errorf("image %q: the local provider supports oci:/path, oci-archive:/path and docker-archive:/path, but no registries yet: %w", ref, providers.ErrUnsupported)
	}
	r := Reference{kind: kind, path: rest}
	if i := strings.LastIndexByte(rest, ':'); i > strings.LastIndexByte(rest, '/') {
		r.path, r.tag = rest[:i], rest[i+1:]
	}
	if kind == "docker-archive" {
		// A tag of Docker includes its repository:
		// docker-archive:/file.tar:repo/name:tag.
		if i := strings.Index(rest, ".tar:"); i >= 0 {
			r.path, r.tag = rest[:i+len(".tar")], rest[i+len(".tar:"):]
		}
	}
	if slices.Contains(strings.Split(r.path, "/"), "..") {
		return Reference{}, fmt.Errorf("image %q: the path contains \"..\": %w", ref, providers.ErrInvalid)
	}
	return r, nil
}
