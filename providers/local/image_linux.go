package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sandgate/sandgate/providers"
)

// reference is where an image is read from.
type reference struct {
	kind string // oci, oci-archive or docker-archive
	path string
	tag  string
}

// parseReference reads "oci:/layout[:tag]", "oci-archive:/file.tar[:tag]" and
// "docker-archive:/file.tar[:tag]".
func parseReference(ref string) (reference, error) {
	kind, rest, ok := strings.Cut(ref, ":")
	switch kind {
	case "oci", "oci-archive", "docker-archive":
	default:
		ok = false
	}
	if !ok || !strings.HasPrefix(rest, "/") {
		return reference{}, fmt.Errorf("image %q: the local provider reads oci:/path, oci-archive:/path and docker-archive:/path, and no registry yet: %w", ref, providers.ErrUnsupported)
	}
	r := reference{kind: kind, path: rest}
	if i := strings.LastIndexByte(rest, ':'); i > strings.LastIndexByte(rest, '/') {
		r.path, r.tag = rest[:i], rest[i+1:]
	}
	if kind == "docker-archive" {
		// A tag there has its repository: docker-archive:/file.tar:repo/name:tag.
		if i := strings.Index(rest, ".tar:"); i >= 0 {
			r.path, r.tag = rest[:i+len(".tar")], rest[i+len(".tar:"):]
		}
	}
	if slices.Contains(strings.Split(r.path, "/"), "..") {
		return reference{}, fmt.Errorf("image %q: the path has a \"..\": %w", ref, providers.ErrInvalid)
	}
	return r, nil
}

// useImage has the plan use an image, which is unpacked on first use.
func (p *Provider) useImage(ctx context.Context, pl *plan, rec *record, ref string) error {
	r, err := parseReference(ref)
	if err != nil {
		return err
	}
	key, meta, err := p.unpacked(ctx, r)
	if err != nil {
		return fmt.Errorf("image %s: %w", ref, err)
	}
	rec.Image = key
	root := filepath.Join(p.layout.image(key), "rootfs")
	pl.image, pl.lower, pl.shared, pl.env, pl.user = root, []string{p.host.skeleton, root}, nil, meta.Env, meta.User
	if pl.workdir == "" {
		pl.workdir = meta.Workdir
	}
	pl.readOnly = !pl.options.WritableRoot
	return nil
}

// checkRoot refuses an image in which a link stands for a directory that the
// sandbox's own layer would hide with all that the image has there.
func checkRoot(root string) error {
	for _, name := range []string{"etc", "var"} {
		info, err := os.Lstat(filepath.Join(root, name))
		if err == nil && !info.IsDir() {
			return fmt.Errorf("the image's /%s is not a directory but %v: %w", name, info.Mode().Type(), providers.ErrInvalid)
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}
