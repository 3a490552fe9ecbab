package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/docker/daemon"
	shared "github.com/sandgate/sandgate/providers/internal/record"
)

// agentLabel is the label of prepared images: the digest of their agent.
const agentLabel = "sandgate.dev/agent"

// PreparedName returns the name of the image that has the agent and the writable
// directories on top of a base. The daemon fills new volumes from them, with owner and
// mode. The daemon may not have it yet.
func (s *Store) PreparedName(base Image, u User) (string, error) {
	agent, err := s.AgentDigest(base.arch)
	if err != nil {
		return "", err
	}
	return "sandgate/prepared:" + shared.Digest(agent, base.id, u.Name, fmt.Sprint(directories(u))), nil
}

// Prepare makes the image that PreparedName names, unless the daemon has it: it commits
// a container that never ran. Of two servers that do so at once, both make a good image.
func (s *Store) Prepare(ctx context.Context, base Image, u User) error {
	name, err := s.PreparedName(base, u)
	if err != nil {
		return err
	}
	// One at a time is enough: it happens once per image.
	held, err := s.locks.Acquire(ctx, "_prepare")
	if err != nil {
		return err
	}
	defer held.Release(true)
	_, err = s.docker.ImageInspect(ctx, name)
	if errdefs.IsNotFound(err) {
		err = s.commit(ctx, base, u, name)
	}
	if err != nil {
		return daemon.Error(ctx, s.docker, "prepare the image", err)
	}
	return nil
}

func (s *Store) commit(ctx context.Context, base Image, u User, name string) error {
	digest, err := s.AgentDigest(base.arch)
	if err != nil {
		return err
	}
	agent, err := s.agent(base.arch)
	if err != nil {
		return err
	}
	content, err := layer(agent, u)
	if err != nil {
		return err
	}
	run, cancel := daemon.Finish(ctx)
	defer cancel()
	config := &container.Config{Image: base.id, Entrypoint: []string{AgentPath}, Labels: map[string]string{agentLabel: digest}}
	return daemon.WithHelper(run, s.docker, config, &container.HostConfig{NetworkMode: "none"}, func(helper string) error {
		if _, err := s.docker.CopyToContainer(run, helper, client.CopyToContainerOptions{DestinationPath: "/", Content: content}); err != nil {
			return err
		}
		// Podman does not commit without a configuration.
		_, err := s.docker.ContainerCommit(run, helper, client.ContainerCommitOptions{Reference: name, NoPause: true, Comment: "made by sandgate", Config: config})
		return err
	})
}

// AgentDigest returns the digest of the agent for an architecture.
func (s *Store) AgentDigest(arch string) (string, error) {
	if known, ok := s.digests.Load(arch); ok {
		return known.(string), nil
	}
	data, err := s.agent(arch)
	if err != nil {
		return "", fmt.Errorf("an image for %q: %w: %w", arch, err, providers.ErrAgentCannotStart)
	}
	sum := sha256.Sum256(data)
	digest := hex.EncodeToString(sum[:])
	s.digests.Store(arch, digest)
	return digest, nil
}

// RemoveOld removes the prepared images of other versions of the agent. The daemon keeps
// those that a container uses; a server that needs one makes it again.
func (s *Store) RemoveOld(ctx context.Context) {
	list, err := s.docker.ImageList(ctx, client.ImageListOptions{Filters: make(client.Filters).Add("label", agentLabel)})
	if err != nil {
		s.log.LogAttrs(ctx, slog.LevelDebug, "prepared images cannot be listed", slog.Any("error", err))
		return
	}
	current := make(map[string]bool)
	for _, arch := range []string{"amd64", "arm64"} {
		if digest, err := s.AgentDigest(arch); err == nil {
			current[digest] = true
		}
	}
	for _, i := range list.Items {
		if current[i.Labels[agentLabel]] {
			continue
		}
		if _, err := s.docker.ImageRemove(ctx, i.ID, client.ImageRemoveOptions{}); err != nil && !errdefs.IsConflict(err) {
			s.log.LogAttrs(ctx, slog.LevelDebug, "a prepared image cannot be removed", slog.String("image", i.ID), slog.Any("error", err))
		}
	}
}
