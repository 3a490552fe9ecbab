// Package image finds images on a Docker daemon, and prepares them for sandboxes.
package image

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/moby/moby/client"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/docker/daemon"
	"github.com/sandgate/sandgate/providers/internal/lock"
)

// Store is the images of a daemon.
type Store struct {
	docker  *client.Client
	locks   *lock.Table
	log     *slog.Logger
	agent   func(arch string) ([]byte, error)
	digests sync.Map // of agents, by architecture
}

// NewStore returns the images of a daemon. Servers that share the locks prepare an image
// once. agent returns the agent's executable for an architecture.
func NewStore(docker *client.Client, locks *lock.Table, log *slog.Logger, agent func(arch string) ([]byte, error)) *Store {
	return &Store{docker: docker, locks: locks, log: log, agent: agent}
}

// Image is an image that sandboxes ask for.
type Image struct {
	Digest string // of its registry, or the id
	User   string

	id   string // of its content, on this daemon
	arch string
}

// Parse returns a reference in full: "debian" is docker.io/library/debian:latest.
func Parse(name string) (reference.Named, error) {
	ref, err := reference.ParseNormalizedNamed(name)
	if err != nil {
		return nil, fmt.Errorf("image %q: %w: %w", name, err, providers.ErrInvalid)
	}
	return reference.TagNameOnly(ref), nil
}

// Find returns an image that the daemon has, and has it pulled where it is missing if
// pull is set.
func (s *Store) Find(ctx context.Context, name string, pull bool) (Image, error) {
	ref, err := Parse(name)
	if err != nil {
		return Image{}, err
	}
	found, err := s.docker.ImageInspect(ctx, ref.String())
	if errdefs.IsNotFound(err) {
		if !pull {
			return Image{}, fmt.Errorf("image %s is not on the Docker host, and the template does not allow to pull it: %w", ref, providers.ErrStartFailed)
		}
		providers.NotePull(ctx)
		if err := s.pull(ctx, ref); err != nil {
			return Image{}, err
		}
		found, err = s.docker.ImageInspect(ctx, ref.String())
	}
	if err != nil {
		return Image{}, daemon.Error(ctx, s.docker, "inspect image "+ref.String(), err)
	}
	i := Image{id: found.ID, Digest: found.ID, arch: found.Architecture}
	if len(found.RepoDigests) > 0 {
		_, i.Digest, _ = strings.Cut(found.RepoDigests[0], "@")
	}
	if found.Config != nil {
		i.User = found.Config.User
	}
	if found.Os != "linux" {
		return Image{}, fmt.Errorf("image %s is for %s, not linux: %w", ref, found.Os, providers.ErrStartFailed)
	}
	return i, nil
}

// progressInterval is how often the log has how far a pull is.
const progressInterval = 5 * time.Second

// pull has the daemon pull an image, with the credentials that "docker login" has
// stored for this user. The daemon pulls once what several calls want.
func (s *Store) pull(ctx context.Context, ref reference.Named) error {
	what := "pull image " + ref.String()
	auth, err := credentials(ref)
	if err != nil {
		return fmt.Errorf("%s: %w: %w", what, err, providers.ErrStartFailed)
	}
	began := time.Now()
	s.log.LogAttrs(ctx, slog.LevelInfo, "pulling an image", slog.String("image", ref.String()))
	response, err := s.docker.ImagePull(ctx, ref.String(), client.ImagePullOptions{RegistryAuth: auth})
	if err != nil {
		return daemon.Error(ctx, s.docker, what, err)
	}
	defer func() { _ = response.Close() }()
	layers := make(map[string]int64)
	logged := began
	for m, err := range response.JSONMessages(ctx) {
		if err == nil && m.Error != nil {
			err = m.Error
		}
		if err != nil {
			return daemon.Error(ctx, s.docker, what, err)
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
			s.log.LogAttrs(ctx, slog.LevelInfo, "pulling an image", slog.String("image", ref.String()), slog.Int64("bytes", sum))
		}
	}
	s.log.LogAttrs(ctx, slog.LevelInfo, "pulled an image", slog.String("image", ref.String()), slog.Duration("took", time.Since(began)))
	return nil
}
