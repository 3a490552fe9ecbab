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
	"slices"
	"strings"

	"github.com/distribution/reference"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/moby/moby/api/pkg/authconfig"
	"github.com/moby/moby/api/types/registry"
	"github.com/moby/moby/client"

	"github.com/sandgate/sandgate/providers/docker/daemon"
)

// Save writes an image to a directory, unless it is there, and returns the reference for
// the local provider: "docker-archive:" and the archive's path. The name of the archive
// is the image's id, so that it never changes.
func Save(ctx context.Context, c *client.Client, id, dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	path, saved := archive(dir, id)
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return saved, err
	}
	saved, _, err = writeArchive(dir, func(f *os.File) (string, error) { return id, write(ctx, c, id, f) })
	return saved, err
}

// writeArchive makes a directory and an archive in it, which fill writes before it returns
// the image's id. It returns the archive's reference and the id.
func writeArchive(dir string, fill func(*os.File) (id string, err error)) (saved, id string, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", "", err
	}
	f, err := os.CreateTemp(dir, ".part-*.tar") // mode 0600
	if err != nil {
		return "", "", err
	}
	defer func() { _ = os.Remove(f.Name()) }()
	if id, err = fill(f); err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return "", "", err
	}
	path, saved := archive(dir, id)
	return saved, id, os.Rename(f.Name(), path)
}

// archive returns the path of an image's archive, and its reference.
func archive(dir, id string) (path, saved string) {
	_, hex, _ := strings.Cut(id, ":")
	path = filepath.Join(dir, hex+".tar")
	return path, "docker-archive:" + filepath.ToSlash(path)
}

func write(ctx context.Context, c *client.Client, id string, to *os.File) error {
	image, err := c.ImageSave(ctx, []string{id})
	if err != nil {
		return daemon.Error(ctx, c, "save the image", err)
	}
	_, err = io.Copy(to, image)
	if err = errors.Join(err, image.Close()); err != nil {
		return daemon.Error(ctx, c, "save the image", err)
	}
	return nil
}

// errMoved is rare: two builds push different images to one tag.
var errMoved = errors.New("another program gave the tag to another image meanwhile; push again")

// Push gives an image a name, has the daemon push it to its registry, and returns the
// name with the digest that the registry has. A name without a tag gets that of the
// build.
func Push(ctx context.Context, c *client.Client, result Result, to string, output io.Writer) (string, error) {
	target, err := pushTarget(to, result.Image)
	if err != nil {
		return "", err
	}
	auths, err := credentials(ctx, []string{to})
	if err != nil {
		return "", err
	}
	auth, err := authconfig.Encode(auths[authKey(target)])
	if err != nil {
		return "", err
	}
	if err := tag(ctx, c, result.ID, target.String()); err != nil {
		return "", err
	}
	response, err := c.ImagePush(ctx, target.String(), client.ImagePushOptions{RegistryAuth: auth})
	if err != nil {
		return "", daemon.Error(ctx, c, "push the image", err)
	}
	defer func() { _ = response.Close() }()
	digest := ""
	if err := follow(ctx, c, response, output, func(aux json.RawMessage) {
		var pushed struct{ Digest string }
		if json.Unmarshal(aux, &pushed) == nil && pushed.Digest != "" {
			digest = pushed.Digest
		}
	}); err != nil {
		return "", fmt.Errorf("push to %s: %w", target, err)
	}
	pinned := target.Name() + "@" + digest
	image, err := c.ImageInspect(ctx, result.ID)
	if err != nil {
		return "", daemon.Error(ctx, c, "inspect the image", err)
	}
	// The daemon lists names in their short form.
	if !slices.ContainsFunc(image.RepoDigests, func(have string) bool {
		named, err := reference.ParseNormalizedNamed(have)
		return err == nil && named.String() == pinned
	}) {
		return "", fmt.Errorf("push to %s: %w", target, errMoved)
	}
	return pinned, nil
}

// pushTarget returns the name to push an image under, with a tag.
func pushTarget(to, image string) (reference.Named, error) {
	target, err := reference.ParseNormalizedNamed(to)
	if err != nil {
		return nil, fmt.Errorf("%w: push to %q: %w", ErrInput, to, err)
	}
	if _, ok := target.(reference.Digested); ok {
		return nil, fmt.Errorf("%w: push to %q: a name to push has no digest", ErrInput, to)
	}
	if !reference.IsNameOnly(target) {
		return target, nil
	}
	_, hash, _ := strings.Cut(image, ":")
	return reference.WithTag(target, hash)
}

// credentials returns what "docker login" has stored for the registries of images,
// credential helpers included.
func credentials(ctx context.Context, images []string) (map[string]registry.AuthConfig, error) {
	found := make(map[string]registry.AuthConfig)
	for _, image := range images {
		named, err := reference.ParseNormalizedNamed(image)
		if err != nil {
			continue // the daemon reports it
		}
		host, err := name.NewRegistry(reference.Domain(named))
		if err != nil {
			continue
		}
		auth, err := authn.Resolve(ctx, authn.DefaultKeychain, host)
		if err != nil {
			return nil, fmt.Errorf("credentials for %s: %w", host, err)
		}
		config, err := authn.Authorization(ctx, auth)
		if err != nil {
			return nil, fmt.Errorf("credentials for %s: %w", host, err)
		}
		if *config != (authn.AuthConfig{}) {
			found[authKey(named)] = registry.AuthConfig{
				Username: config.Username, Password: config.Password, IdentityToken: config.IdentityToken,
				RegistryToken: config.RegistryToken, ServerAddress: authKey(named),
			}
		}
	}
	return found, nil
}

// authKey is the key of a registry in requests to the daemon.
func authKey(image reference.Named) string {
	if domain := reference.Domain(image); domain != "docker.io" {
		return domain
	}
	return authn.DefaultAuthKey
}
