package local

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	ocilayout "github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

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
	return r, nil
}

// useImage has the plan use an image, which is unpacked on first use.
func (p *Provider) useImage(ctx context.Context, pl *plan, ref string) error {
	r, err := parseReference(ref)
	if err != nil {
		return err
	}
	root, meta, err := p.unpacked(ctx, r)
	if err != nil {
		return fmt.Errorf("image %s: %w", ref, err)
	}
	pl.image, pl.lower, pl.shared, pl.env, pl.user = root, []string{p.host.skeleton, root}, nil, meta.Env, meta.User
	if pl.workdir == "" {
		pl.workdir = meta.Workdir
	}
	pl.readOnly = !pl.options.WritableRoot
	return nil
}

// unpacked returns an image's directory and makes it on first use.
func (p *Provider) unpacked(ctx context.Context, r reference) (string, *imageMeta, error) {
	scratch, err := os.MkdirTemp(p.layout.images(), ".part-*")
	if err != nil {
		return "", nil, err
	}
	defer func() { _ = os.RemoveAll(scratch) }()
	img, err := openImage(ctx, r, scratch)
	if err != nil {
		return "", nil, err
	}
	// The configuration names every layer by its content.
	id, err := img.ConfigName()
	if err != nil {
		return "", nil, fmt.Errorf("%w: %w", err, providers.ErrInvalid)
	}
	held, err := p.locks.acquire(ctx, "_image-"+id.Hex)
	if err != nil {
		return "", nil, err
	}
	defer held.release(true)
	dir := filepath.Join(p.layout.images(), id.Hex)
	meta := &imageMeta{}
	if data, err := os.ReadFile(filepath.Join(dir, "meta.json")); err == nil {
		return filepath.Join(dir, "rootfs"), meta, json.Unmarshal(data, meta)
	}
	made := filepath.Join(scratch, "image")
	root := filepath.Join(made, "rootfs")
	if err := os.MkdirAll(root, 0o755); err != nil {
		return "", nil, err
	}
	if err := unpackImage(ctx, img, root); err != nil {
		return "", nil, err
	}
	file, err := img.ConfigFile()
	if err != nil {
		return "", nil, fmt.Errorf("%w: %w", err, providers.ErrInvalid)
	}
	meta = readMeta(file, root)
	if err := checkRoot(root); err != nil {
		return "", nil, err
	}
	if err := writeJSON(filepath.Join(made, "meta.json"), meta); err != nil {
		return "", nil, err
	}
	return filepath.Join(dir, "rootfs"), meta, os.Rename(made, dir)
}

func openImage(ctx context.Context, r reference, scratch string) (v1.Image, error) {
	if _, err := os.Stat(r.path); err != nil {
		return nil, fmt.Errorf("%w: %w", err, providers.ErrInvalid)
	}
	switch r.kind {
	case "docker-archive":
		var tag *name.Tag
		if r.tag != "" {
			t, err := name.NewTag(r.tag)
			if err != nil {
				return nil, fmt.Errorf("%w: %w", err, providers.ErrInvalid)
			}
			tag = &t
		}
		img, err := tarball.ImageFromPath(r.path, tag)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", err, providers.ErrInvalid)
		}
		return img, nil
	case "oci-archive":
		dir := filepath.Join(scratch, "layout")
		if err := untarLayout(ctx, r.path, dir); err != nil {
			return nil, err
		}
		r.path = dir
	}
	index, err := ocilayout.ImageIndexFromPath(r.path)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, providers.ErrInvalid)
	}
	return pickImage(index, r.tag)
}

const refName = "org.opencontainers.image.ref.name"

// pickImage finds the image of a tag for this machine, also below an index of
// several platforms.
func pickImage(index v1.ImageIndex, tag string) (v1.Image, error) {
	manifest, err := index.IndexManifest()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, providers.ErrInvalid)
	}
	for _, d := range manifest.Manifests {
		if tag != "" && d.Annotations[refName] != tag {
			continue
		}
		switch {
		case d.MediaType.IsIndex():
			inner, err := index.ImageIndex(d.Digest)
			if err != nil {
				return nil, fmt.Errorf("%w: %w", err, providers.ErrInvalid)
			}
			return pickImage(inner, "")
		case d.MediaType.IsImage() && (d.Platform == nil || d.Platform.OS == "linux" && d.Platform.Architecture == runtime.GOARCH):
			return index.Image(d.Digest)
		}
	}
	return nil, fmt.Errorf("there is no image for linux/%s with the tag %q: %w", runtime.GOARCH, tag, providers.ErrInvalid)
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

// untarLayout unpacks an OCI layout from one tar file. A layout has regular
// files and directories only.
func untarLayout(ctx context.Context, archive, dir string) error {
	f, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	for entries := tar.NewReader(f); ; {
		h, err := entries.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%w: %w", err, providers.ErrInvalid)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		clean := strings.TrimPrefix(path.Clean("/"+h.Name), "/")
		if err := root.MkdirAll(path.Dir(clean), 0o700); err != nil {
			return err
		}
		out, err := root.OpenFile(clean, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
		if err != nil {
			return err
		}
		_, err = io.Copy(out, entries)
		if err := errors.Join(err, out.Close()); err != nil {
			return fmt.Errorf("%w: %w", err, providers.ErrInvalid)
		}
	}
}
