package build

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/distribution/reference"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/moby/moby/client"

	"github.com/sandgate/sandgate/providers/docker/daemon"
	"github.com/sandgate/sandgate/providers/internal/atomicfile"
	"github.com/sandgate/sandgate/providers/internal/lock"
)

// BuildKitOptions describe a build by a buildkitd, and where its image goes.
type BuildKitOptions struct {
	// Pull changes nothing: a buildkitd always gets the images that the registries have.
	Options

	// Address is that of the buildkitd, as buildctl takes it. Required.
	Address string
	// Platform is that of the image. Default: Linux on the architecture of this program.
	Platform string

	// Save is a directory for an archive of the image.
	Save string
	// Push is the image's name in a registry.
	Push string
	// Daemon loads the image if it is neither saved nor pushed.
	Daemon *client.Client
}

// Delivered is an image and where it is.
type Delivered struct {
	Result

	// Archive is the reference of the archive for the local provider. Empty: not saved.
	Archive string
	// Pushed is the name with the digest in the registry. Empty: not pushed.
	Pushed string
}

// kit builds one context.
type kit struct {
	BuildKitOptions
	snapshot *snapshot
	pins     map[string]string // digest by image of a FROM instruction
	name     string            // of the result
	ran      bool              // buildctl has run
}

// BuildKit has buildctl, the program of the buildkitd, build an image and deliver it.
// What is already where it is to go is not built again. Of several calls at once that
// build the same, one builds.
func BuildKit(ctx context.Context, o BuildKitOptions) (Delivered, error) {
	if o.Output == nil {
		o.Output = io.Discard
	}
	if o.Platform == "" {
		o.Platform = "linux/" + runtime.GOARCH
	}
	if _, err := v1.ParsePlatform(o.Platform); err != nil {
		return Delivered{}, fmt.Errorf("%w: platform %q: %w", ErrInput, o.Platform, err)
	}
	s, err := take(ctx, o.Dir, o.Dockerfile)
	if err != nil {
		return Delivered{}, err
	}
	defer func() { _ = s.close() }()
	if err := os.MkdirAll(o.StateDir, 0o700); err != nil {
		return Delivered{}, err
	}
	content := digest(append(argList(o.Args), "context", s.hash, "file", s.dockerfile, "target", o.Target, "platform", o.Platform)...)
	held, err := lock.NewTable(o.StateDir).Acquire(ctx, "build-"+content)
	if err != nil {
		return Delivered{}, err
	}
	defer held.Release(true)

	k := &kit{BuildKitOptions: o, snapshot: s}
	if k.pins, err = pin(ctx, bases(s.text, o.Args)); err != nil {
		return Delivered{}, err
	}
	k.name = imageName(content, k.pins)
	d := Delivered{Result: Result{Image: k.name}}
	if o.Save != "" {
		if d.Archive, d.ID, err = k.save(ctx, o.Save); err != nil {
			return Delivered{}, err
		}
	}
	if o.Push != "" {
		if d.Pushed, d.ID, err = k.push(ctx, o.Push); err != nil {
			return Delivered{}, err
		}
	}
	if o.Save+o.Push == "" {
		if d.ID, err = k.load(ctx); err != nil {
			return Delivered{}, err
		}
	}
	d.Reused = !k.ran
	return d, nil
}

// save writes an archive, and a file that records which one the name stands for.
func (k *kit) save(ctx context.Context, dir string) (saved, id string, err error) {
	if dir, err = filepath.Abs(dir); err != nil {
		return "", "", err
	}
	_, hash, _ := strings.Cut(k.name, ":")
	record := filepath.Join(dir, hash+".id")
	if known, err := os.ReadFile(record); err == nil && !k.NoCache {
		if hash, err := v1.NewHash(string(known)); err == nil {
			path, saved := archive(dir, hash.String())
			if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
				return saved, hash.String(), err
			}
		}
	}
	saved, id, err = writeArchive(dir, func(f *os.File) (string, error) {
		image, err := k.run(ctx, "type=docker,name="+k.name, f)
		return image.ID, err
	})
	if err != nil {
		return "", "", err
	}
	return saved, id, atomicfile.Write(record, []byte(id))
}

// push has the buildkitd push the image under its hash, and gives it the tag that was
// asked for.
func (k *kit) push(ctx context.Context, to string) (pushed, id string, err error) {
	target, err := pushTarget(to, k.name)
	if err != nil {
		return "", "", err
	}
	_, hash, _ := strings.Cut(k.name, ":")
	hashed := target.Name() + ":" + hash
	ref, err := name.NewTag(hashed)
	if err != nil {
		return "", "", fmt.Errorf("%w: push to %q: %w", ErrInput, to, err)
	}
	if _, err := remote.Head(ref, registryOptions(ctx)...); err != nil || k.NoCache {
		if err != nil && !missing(err) {
			return "", "", registryError(ctx, "look for "+hashed, err)
		}
		if _, err := k.run(ctx, "type=image,push=true,name="+hashed, nil); err != nil {
			return "", "", err
		}
	}
	platform, err := v1.ParsePlatform(k.Platform)
	if err != nil {
		return "", "", err
	}
	found, err := remote.Get(ref, append(registryOptions(ctx), remote.WithPlatform(*platform))...)
	if err != nil {
		return "", "", registryError(ctx, "look for "+hashed, err)
	}
	if target.String() != hashed {
		tag, err := name.NewTag(target.String())
		if err == nil {
			err = remote.Tag(tag, found, registryOptions(ctx)...)
		}
		if err != nil {
			return "", "", registryError(ctx, "push to "+target.String(), err)
		}
	}
	image, err := found.Image()
	if err != nil {
		return "", "", registryError(ctx, "read "+hashed, err)
	}
	config, err := image.ConfigName()
	if err != nil {
		return "", "", registryError(ctx, "read "+hashed, err)
	}
	return target.Name() + "@" + found.Digest.String(), config.String(), nil
}

// load gives the image to the Docker daemon.
func (k *kit) load(ctx context.Context) (string, error) {
	if err := daemon.Connect(ctx, k.Daemon); err != nil {
		return "", fmt.Errorf("an image of a buildkitd is saved, pushed or loaded into a Docker daemon: %w", err)
	}
	id, err := find(ctx, k.Daemon, k.name)
	if err != nil || id != "" && !k.NoCache {
		return id, err
	}
	f, err := os.CreateTemp("", "sandgate-build-*.tar")
	if err != nil {
		return "", err
	}
	defer func() { _ = errors.Join(f.Close(), os.Remove(f.Name())) }()
	image, err := k.run(ctx, "type=docker,name="+k.name, f)
	if err != nil {
		return "", err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return "", err
	}
	response, err := k.Daemon.ImageLoad(ctx, f, client.ImageLoadWithQuiet(true))
	if err != nil {
		return "", daemon.Error(ctx, k.Daemon, "load the image", err)
	}
	defer func() { _ = response.Close() }()
	if err := follow(ctx, k.Daemon, response, io.Discard, func(json.RawMessage) {}); err != nil {
		return "", fmt.Errorf("load the image: %w", err)
	}
	if id, err = find(ctx, k.Daemon, k.name); err == nil && id == "" {
		err = fmt.Errorf("%w: the Docker daemon has loaded %s without its name", ErrFailed, image.ID)
	}
	return id, err
}

// pin returns the digests that the registries have for images. Those that have a digest
// in their name are left out.
func pin(ctx context.Context, images []string) (map[string]string, error) {
	pins := make(map[string]string)
	for _, image := range images {
		named, err := reference.ParseNormalizedNamed(image)
		if err != nil {
			continue // the builder reports it with the line
		}
		if _, ok := named.(reference.Digested); ok {
			continue
		}
		ref, err := name.ParseReference(reference.TagNameOnly(named).String())
		if err != nil {
			continue
		}
		found, err := remote.Head(ref, registryOptions(ctx)...)
		if err != nil {
			return nil, registryError(ctx, "FROM "+image, err)
		}
		pins[image] = found.Digest.String()
	}
	return pins, nil
}
