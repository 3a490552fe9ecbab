// Package image pulls and reads container images, unpacks each once, and removes
// those that are no longer used.
package image

import (
	"fmt"
	"slices"
	"strings"

	named "github.com/distribution/reference"
	digests "github.com/opencontainers/go-digest"

	"github.com/sandgate/sandgate/providers"
)

// Reference is the location of an image.
type Reference struct {
	kind string // oci, oci-archive or docker-archive; empty: a registry
	path string
	tag  string
	name named.Named // in a registry, with a tag or a digest
}

// Parse reads "oci:/layout[:tag]", "oci-archive:/file.tar[:tag]",
// "docker-archive:/file.tar[:tag]", and names in registries as Docker does.
func Parse(ref string) (Reference, error) {
	kind, rest, colon := strings.Cut(ref, ":")
	if !colon {
		return parseName(ref)
	}
	switch kind {
	case "oci", "oci-archive", "docker-archive":
		return parsePath(ref, kind, rest)
	default:
		return parseName(ref)
	}
}

func parsePath(ref, kind, rest string) (Reference, error) {
	if !strings.HasPrefix(rest, "/") {
		return Reference{}, fmt.Errorf("image %q: a path must follow %q that begins with \"/\": %w", ref, kind+":", providers.ErrInvalid)
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

func parseName(ref string) (Reference, error) {
	name, err := named.ParseNormalizedNamed(ref)
	if err != nil {
		return Reference{}, fmt.Errorf("image %q: %w; it must be NAME[:TAG][@DIGEST] of a registry, oci:/path, oci-archive:/path or docker-archive:/path: %w", ref, err, providers.ErrInvalid)
	}
	if pinned, ok := name.(named.Digested); ok && pinned.Digest().Algorithm() != digests.SHA256 {
		return Reference{}, fmt.Errorf("image %q: only digests of sha256 are supported: %w", ref, providers.ErrInvalid)
	}
	return Reference{name: named.TagNameOnly(name)}, nil
}

// InRegistry reports whether the image must be pulled.
func (r Reference) InRegistry() bool { return r.name != nil }

// identifier is the digest, or else the tag, of an image in a registry.
func (r Reference) identifier() string {
	switch n := r.name.(type) {
	case named.Digested:
		return n.Digest().String()
	case named.Tagged:
		return n.Tag()
	}
	return ""
}

// pinned reports whether the reference has a digest, so that it never means another
// image.
func (r Reference) pinned() bool {
	_, ok := r.name.(named.Digested)
	return ok
}
