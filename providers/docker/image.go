package docker

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/moby/moby/client"

	"github.com/sandgate/sandgate/providers"
)

// baseImage is an image that sandboxes ask for.
type baseImage struct {
	id     string // of its content, on this daemon
	digest string // of its registry, or the id
	arch   string
	user   string
}

// checkImage returns the reference in full: "debian" is docker.io/library/debian:latest.
func checkImage(name string) (reference.Named, error) {
	ref, err := reference.ParseNormalizedNamed(name)
	if err != nil {
		return nil, fmt.Errorf("image %q: %w: %w", name, err, providers.ErrInvalid)
	}
	return reference.TagNameOnly(ref), nil
}

// findImage returns an image that the daemon has, and has it pulled where it is
// missing.
func (p *Provider) findImage(ctx context.Context, name string, o options) (baseImage, error) {
	if name == "" {
		name = p.config.Image
	}
	ref, err := checkImage(name)
	if err != nil {
		return baseImage{}, err
	}
	found, err := p.docker.ImageInspect(ctx, ref.String())
	if errdefs.IsNotFound(err) {
		if o.Pull == pullNever {
			return baseImage{}, fmt.Errorf("image %s is not on the Docker host, and the template does not allow to pull it: %w", ref, providers.ErrStartFailed)
		}
		if err := p.pull(ctx, ref); err != nil {
			return baseImage{}, err
		}
		found, err = p.docker.ImageInspect(ctx, ref.String())
	}
	if err != nil {
		return baseImage{}, p.daemonError(ctx, "inspect image "+ref.String(), err)
	}
	b := baseImage{id: found.ID, digest: found.ID, arch: found.Architecture}
	if len(found.RepoDigests) > 0 {
		_, b.digest, _ = strings.Cut(found.RepoDigests[0], "@")
	}
	if found.Config != nil {
		b.user = found.Config.User
	}
	if found.Os != "linux" {
		return baseImage{}, fmt.Errorf("image %s is for %s, not linux: %w", ref, found.Os, providers.ErrStartFailed)
	}
	return b, nil
}

// progressInterval is how often the log has how far a pull is.
const progressInterval = 5 * time.Second

// pull has the daemon pull an image, with the credentials that "docker login" has
// stored for this user. The daemon pulls once what several calls want.
func (p *Provider) pull(ctx context.Context, ref reference.Named) error {
	what := "pull image " + ref.String()
	auth, err := credentials(ref)
	if err != nil {
		return fmt.Errorf("%s: %w: %w", what, err, providers.ErrStartFailed)
	}
	began := time.Now()
	p.log.LogAttrs(ctx, slog.LevelInfo, "pulling an image", slog.String("image", ref.String()))
	response, err := p.docker.ImagePull(ctx, ref.String(), client.ImagePullOptions{RegistryAuth: auth})
	if err != nil {
		return p.daemonError(ctx, what, err)
	}
	defer func() { _ = response.Close() }()
	layers := make(map[string]int64)
	logged := began
	for m, err := range response.JSONMessages(ctx) {
		if err == nil && m.Error != nil {
			err = m.Error
		}
		if err != nil {
			return p.daemonError(ctx, what, err)
		}
		if m.Progress != nil && m.Status == "Downloading" {
			layers[m.ID] = m.Progress.Current
		}
		if time.Since(logged) > progressInterval {
			logged = time.Now()
			var sum int64
			for _, n := range layers {
				sum += n
			}
			p.log.LogAttrs(ctx, slog.LevelInfo, "pulling an image", slog.String("image", ref.String()), slog.Int64("bytes", sum))
		}
	}
	p.log.LogAttrs(ctx, slog.LevelInfo, "pulled an image", slog.String("image", ref.String()), slog.Duration("took", time.Since(began)))
	return nil
}
