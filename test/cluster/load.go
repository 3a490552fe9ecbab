package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// loadImage brings in one of the images that every cluster has, unless it is there.
func (c *cluster) loadImage(ctx context.Context, image string) error {
	conn, err := c.dialRuntime()
	if err != nil {
		return err
	}
	defer conn.Close()
	if have, err := c.haveImage(ctx, conn, image); err != nil || have {
		return err
	}
	path, err := c.makeImage(image)
	if err != nil {
		return fmt.Errorf("%s: %w", image, err)
	}
	return c.importArchive(ctx, path, image)
}

// load brings in an image from a docker-archive, an OCI archive or an OCI layout.
// With a name the image gets it, else it keeps those that it has.
func (c *cluster) load(ctx context.Context, image, path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if image == "" && info.IsDir() {
		return fmt.Errorf("%s: an OCI layout needs a name: NAME=%s", path, path)
	}
	if image == "" {
		return c.importArchive(ctx, path, "")
	}
	tag, err := name.NewTag(image)
	if err != nil {
		return err
	}
	var loaded v1.Image
	if info.IsDir() {
		loaded, err = fromLayout(path)
	} else {
		loaded, err = tarball.ImageFromPath(path, nil)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	dir, err := os.MkdirTemp("", "cluster-load-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	archive := filepath.Join(dir, "image.tar")
	if err := write(archive, tag.Name(), loaded); err != nil {
		return err
	}
	return c.importArchive(ctx, archive, tag.Name())
}

// fromLayout reads the only image of an OCI layout.
func fromLayout(path string) (v1.Image, error) {
	index, err := layout.ImageIndexFromPath(path)
	if err != nil {
		return nil, err
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return nil, err
	}
	if len(manifest.Manifests) != 1 || !manifest.Manifests[0].MediaType.IsImage() {
		return nil, errors.New("not a layout of exactly one image")
	}
	return index.Image(manifest.Manifests[0].Digest)
}

// importArchive gives an archive to containerd and returns when the kubelet can see
// the image of that name.
func (c *cluster) importArchive(ctx context.Context, path, image string) error {
	cmd := exec.CommandContext(ctx, "ctr", "--address", c.socket(), "--namespace", "k8s.io",
		"images", "import", path)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("import %s: %w: %s", path, err, bytes.TrimSpace(out))
	}
	if image == "" {
		return nil
	}
	conn, err := c.dialRuntime()
	if err != nil {
		return err
	}
	defer conn.Close()
	return until(ctx, image, func(ctx context.Context) error {
		have, err := c.haveImage(ctx, conn, image)
		if err == nil && !have {
			err = errors.New("containerd does not list it yet")
		}
		return err
	})
}

// split takes NAME=PATH apart. A path alone has no name.
func split(arg string) (image, path string) {
	if before, after, ok := strings.Cut(arg, "="); ok {
		return before, after
	}
	return "", arg
}
