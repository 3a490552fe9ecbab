package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/sandgate/sandgate/providers"
)

// source is one image of a layout. Every part is named by a digest and checked
// against it when it is read.
type source struct {
	files fileSet
	// key is the digest of the manifest, or in an archive of Docker, whose
	// manifest has none, of the configuration.
	key      string
	manifest *v1.Descriptor
	config   []byte  // of Docker's
	layers   []layer // of Docker's
	packed   int64   // bytes to pull
}

// layer is a layer's file. Its unpacked content is checked against the digest
// in the configuration.
type layer struct {
	file   string
	digest string // of the file; empty: unknown
	size   int64
}

// open finds the image that a reference names.
func open(ctx context.Context, r Reference) (src *source, err error) {
	var files fileSet
	if r.kind == "oci" {
		root, err := os.OpenRoot(r.path)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", err, providers.ErrInvalid)
		}
		files = layoutDir{root}
	} else if files, err = openArchive(ctx, r.path); err != nil {
		return nil, err
	}
	if r.kind == "docker-archive" {
		src, err = dockerImage(files, r.tag)
	} else {
		src, err = ociImage(files, r.tag)
	}
	if err != nil {
		return nil, errors.Join(err, files.Close())
	}
	return src, nil
}

func (s *source) close() error { return s.files.Close() }

const (
	refName = "org.opencontainers.image.ref.name"
	// maxIndexDepth limits the nesting of indexes.
	maxIndexDepth = 4
)

// ociImage finds the image of a tag for this machine, also below an index of
// several platforms.
func ociImage(files fileSet, tag string) (*source, error) {
	data, err := readSmall(files, "index.json")
	for depth := 0; err == nil && depth < maxIndexDepth; depth++ {
		var index v1.IndexManifest
		if err := json.Unmarshal(data, &index); err != nil {
			return nil, fmt.Errorf("the image's index: %w: %w", err, providers.ErrInvalid)
		}
		i := slices.IndexFunc(index.Manifests, func(d v1.Descriptor) bool {
			if tag != "" && d.Annotations[refName] != tag {
				return false
			}
			return runsHere(d)
		})
		if i < 0 {
			return nil, fmt.Errorf("no image for linux/%s has the tag %q: %w", runtime.GOARCH, tag, providers.ErrInvalid)
		}
		found := index.Manifests[i]
		if !found.MediaType.IsIndex() {
			if found.Digest.Algorithm != "sha256" {
				return nil, fmt.Errorf("the image's digest has the unsupported algorithm %q: %w", found.Digest.Algorithm, providers.ErrInvalid)
			}
			return &source{files: files, key: found.Digest.Hex, manifest: &found}, nil
		}
		tag = ""
		data, err = readBlob(files, found)
	}
	if err != nil {
		return nil, err
	}
	return nil, fmt.Errorf("the image has indexes of more than %d levels: %w", maxIndexDepth, providers.ErrInvalid)
}

// dockerImage finds an image in an archive that "docker save" wrote.
func dockerImage(files fileSet, tag string) (*source, error) {
	data, err := readSmall(files, "manifest.json")
	if err != nil {
		return nil, err
	}
	var images []struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	if err := json.Unmarshal(data, &images); err != nil {
		return nil, fmt.Errorf("the archive's manifest: %w: %w", err, providers.ErrInvalid)
	}
	if tag == "" && len(images) != 1 {
		return nil, fmt.Errorf("the archive has %d images: choose one by its tag: %w", len(images), providers.ErrInvalid)
	}
	for _, img := range images {
		if tag != "" && !slices.ContainsFunc(img.RepoTags, func(other string) bool { return sameTag(tag, other) }) {
			continue
		}
		src := &source{files: files}
		if src.config, err = readSmall(files, img.Config); err != nil {
			return nil, err
		}
		sum := sha256.Sum256(src.config)
		src.key = hex.EncodeToString(sum[:])
		for _, file := range img.Layers {
			src.layers = append(src.layers, layer{file: file})
		}
		return src, nil
	}
	return nil, fmt.Errorf("no image has the tag %q: %w", tag, providers.ErrInvalid)
}

func sameTag(a, b string) bool {
	one, err1 := name.NewTag(a)
	other, err2 := name.NewTag(b)
	return err1 == nil && err2 == nil && one.Name() == other.Name()
}

// load returns the configuration and the layers.
func (s *source) load() (*v1.ConfigFile, []layer, error) {
	data, layers := s.config, s.layers
	if s.manifest != nil {
		raw, err := readBlob(s.files, *s.manifest)
		if err != nil {
			return nil, nil, err
		}
		var manifest v1.Manifest
		if err := json.Unmarshal(raw, &manifest); err != nil {
			return nil, nil, fmt.Errorf("the image's manifest: %w: %w", err, providers.ErrStartFailed)
		}
		if data, err = readBlob(s.files, manifest.Config); err != nil {
			return nil, nil, err
		}
		for _, d := range manifest.Layers {
			if d.Digest.Algorithm != "sha256" {
				return nil, nil, fmt.Errorf("a layer's digest has the unsupported algorithm %q: %w", d.Digest.Algorithm, providers.ErrStartFailed)
			}
			layers = append(layers, layer{file: blobFile(d.Digest), digest: d.Digest.Hex, size: d.Size})
		}
	}
	config := &v1.ConfigFile{}
	if err := json.Unmarshal(data, config); err != nil {
		return nil, nil, fmt.Errorf("the image's configuration: %w: %w", err, providers.ErrStartFailed)
	}
	if len(config.RootFS.DiffIDs) != len(layers) {
		return nil, nil, fmt.Errorf("the image has %d layers, but its configuration lists %d: %w", len(layers), len(config.RootFS.DiffIDs), providers.ErrStartFailed)
	}
	return config, layers, nil
}

func blobFile(h v1.Hash) string { return "blobs/" + h.Algorithm + "/" + h.Hex }

// readBlob reads an index, a manifest or a configuration.
func readBlob(files fileSet, d v1.Descriptor) ([]byte, error) {
	if d.Digest.Algorithm != "sha256" {
		return nil, fmt.Errorf("a digest has the unsupported algorithm %q: %w", d.Digest.Algorithm, providers.ErrStartFailed)
	}
	data, err := readSmall(files, blobFile(d.Digest))
	if err != nil {
		return nil, err
	}
	if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != d.Digest.Hex {
		return nil, fmt.Errorf("%s does not match its digest: %w", d.Digest, providers.ErrStartFailed)
	}
	return data, nil
}
