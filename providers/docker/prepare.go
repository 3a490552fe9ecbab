package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/sandgate/sandgate/providers"
	shared "github.com/sandgate/sandgate/providers/internal/record"
)

// Where things are in a sandbox.
const (
	agentDir   = "/sandgate"
	agentPath  = agentDir + "/sandgate-agent"
	socketDir  = agentDir + "/socket"
	stateDir   = "/run/sandgate"
	homeDir    = "/home/sandbox"
	workingDir = "/workspace"
)

// places are the writable directories and the ends of their volumes' names.
var places = []struct{ name, at string }{
	{"workspace", workingDir},
	{"home", homeDir},
	{"tool-results", "/large_tool_results"},
	{"history", "/conversation_history"},
	{"tmp", "/tmp"},
	{"var-tmp", "/var/tmp"},
	{"state", stateDir},
}

// preparedRepository has the tags of prepared images.
const preparedRepository = "sandgate/prepared"

// prepared knows the prepared images that this process has seen.
type prepared struct {
	mu     sync.Mutex
	ids    map[string]string // by tag
	agents map[string]string // digests, by architecture
}

// user is the user of a sandbox.
type user struct {
	name     string // as Docker takes it
	uid, gid int
	numeric  bool
}

func userOf(o options, b baseImage) user {
	u := user{name: o.User}
	if o.User == imageUser {
		u.name = b.user
	}
	id, group, _ := strings.Cut(u.name, ":")
	var idErr, groupErr error
	u.uid, idErr = strconv.Atoi(id)
	u.gid, groupErr = strconv.Atoi(group)
	u.numeric = idErr == nil && groupErr == nil
	return u
}

func (u user) isRoot() bool {
	id, _, _ := strings.Cut(u.name, ":")
	number, err := strconv.Atoi(id)
	return id == "" || id == "root" || err == nil && number == 0
}

// prepare returns the id of an image that has the agent and the writable directories
// on top of a base. The daemon fills new volumes from them, with owner and mode.
func (p *Provider) prepare(ctx context.Context, base baseImage, u user) (string, error) {
	agent, err := p.agentDigest(base.arch)
	if err != nil {
		return "", err
	}
	tag := preparedRepository + ":" + shared.Digest(agent, base.id, u.name, fmt.Sprint(preparedDirs(u)))
	p.prepared.mu.Lock()
	id := p.prepared.ids[tag]
	p.prepared.mu.Unlock()
	if id != "" {
		return id, nil
	}
	// One at a time is enough: it happens once per image.
	held, err := p.locks.Acquire(ctx, "_prepare")
	if err != nil {
		return "", err
	}
	defer held.Release(true)
	found, err := p.docker.ImageInspect(ctx, tag)
	switch {
	case err == nil:
		id = found.ID
	case errdefs.IsNotFound(err):
		id, err = p.makePrepared(ctx, base, u, tag, agent)
	}
	if err != nil {
		return "", p.daemonError(ctx, "prepare the image", err)
	}
	p.prepared.mu.Lock()
	defer p.prepared.mu.Unlock()
	if p.prepared.ids == nil {
		p.prepared.ids = make(map[string]string)
	}
	p.prepared.ids[tag] = id
	return id, nil
}

// forgetPrepared drops what this process knows: another server or a person has removed
// a prepared image.
func (p *Provider) forgetPrepared() {
	p.prepared.mu.Lock()
	defer p.prepared.mu.Unlock()
	p.prepared.ids = nil
}

// helperPrefix begins the names of containers that never run.
const helperPrefix = "sandgate-helper-"

// makePrepared commits a container that never ran. Of two servers that do so at once,
// both make a good image.
func (p *Provider) makePrepared(ctx context.Context, base baseImage, u user, tag, digest string) (id string, err error) {
	agent, err := p.config.Agent(base.arch)
	if err != nil {
		return "", err
	}
	layer, err := preparedFiles(agent, u)
	if err != nil {
		return "", err
	}
	name := helperPrefix + shared.Random()
	run, cancel := finish(ctx)
	defer cancel()
	config := &container.Config{Image: base.id, Entrypoint: []string{agentPath}, Labels: map[string]string{agentLabel: digest}}
	_, err = p.docker.ContainerCreate(run, client.ContainerCreateOptions{
		Name: name, Config: config, HostConfig: &container.HostConfig{NetworkMode: "none"},
	})
	if err != nil {
		return "", err
	}
	defer func() {
		_, removal := p.docker.ContainerRemove(run, name, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
		err = errors.Join(err, removal)
	}()
	if _, err := p.docker.CopyToContainer(run, name, client.CopyToContainerOptions{DestinationPath: "/", Content: layer}); err != nil {
		return "", err
	}
	// Podman does not commit without a configuration.
	made, err := p.docker.ContainerCommit(run, name, client.ContainerCommitOptions{Reference: tag, NoPause: true, Comment: "made by sandgate", Config: config})
	return made.ID, err
}

// preparedDirs are the directories of a prepared image's layer.
func preparedDirs(u user) []tar.Header {
	dirs := []tar.Header{
		{Name: "home/", Mode: 0o755}, {Name: "var/", Mode: 0o755}, {Name: agentDir[1:] + "/", Mode: 0o755}, {Name: socketDir[1:] + "/", Mode: 0o755},
		// A tmpfs takes the mode of the directory that it covers.
		{Name: "run/", Mode: 0o1777},
	}
	for _, place := range places {
		h := tar.Header{Name: place.at[1:] + "/", Mode: 0o755, Uid: u.uid, Gid: u.gid}
		if !u.numeric || strings.HasSuffix(place.at, "/tmp") {
			h.Mode, h.Uid, h.Gid = 0o1777, 0, 0
		}
		dirs = append(dirs, h)
	}
	for i := range dirs {
		dirs[i].Typeflag = tar.TypeDir
	}
	return dirs
}

// preparedFiles returns the layer of a prepared image as a tar stream.
func preparedFiles(agent []byte, u user) (*bytes.Buffer, error) {
	out := &bytes.Buffer{}
	w := tar.NewWriter(out)
	for _, h := range preparedDirs(u) {
		if err := w.WriteHeader(&h); err != nil {
			return nil, err
		}
	}
	if err := w.WriteHeader(&tar.Header{Name: agentPath[1:], Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(agent))}); err != nil {
		return nil, err
	}
	_, err := w.Write(agent)
	return out, errors.Join(err, w.Close())
}

// agentDigest returns the digest of the agent for an architecture.
func (p *Provider) agentDigest(arch string) (string, error) {
	p.prepared.mu.Lock()
	defer p.prepared.mu.Unlock()
	if d := p.prepared.agents[arch]; d != "" {
		return d, nil
	}
	data, err := p.config.Agent(arch)
	if err != nil {
		return "", fmt.Errorf("an image for %q: %w: %w", arch, err, providers.ErrAgentCannotStart)
	}
	sum := sha256.Sum256(data)
	if p.prepared.agents == nil {
		p.prepared.agents = make(map[string]string)
	}
	p.prepared.agents[arch] = hex.EncodeToString(sum[:])
	return p.prepared.agents[arch], nil
}

// helperAge is when a helper has been left by a crashed server.
const helperAge = time.Hour

// removeOldHelpers removes what crashed servers have left while they prepared images.
func (p *Provider) removeOldHelpers(ctx context.Context) {
	// Podman's names have no slash.
	list, err := p.docker.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: make(client.Filters).Add("name", "^/?"+helperPrefix)})
	for _, c := range list.Items {
		if time.Since(time.Unix(c.Created, 0)) > helperAge {
			_, removal := p.docker.ContainerRemove(ctx, c.ID, client.ContainerRemoveOptions{RemoveVolumes: true})
			err = errors.Join(err, removal)
		}
	}
	if err != nil {
		p.log.LogAttrs(ctx, slog.LevelDebug, "helper containers cannot be removed", slog.Any("error", err))
	}
}

// removeOldImages removes the prepared images of other versions of the agent. The
// daemon keeps those that a container uses; a server that needs one makes it again.
func (p *Provider) removeOldImages(ctx context.Context) {
	list, err := p.docker.ImageList(ctx, client.ImageListOptions{Filters: make(client.Filters).Add("label", agentLabel)})
	if err != nil {
		p.log.LogAttrs(ctx, slog.LevelDebug, "prepared images cannot be listed", slog.Any("error", err))
		return
	}
	current := make(map[string]bool)
	for _, arch := range []string{"amd64", "arm64"} {
		if digest, err := p.agentDigest(arch); err == nil {
			current[digest] = true
		}
	}
	for _, i := range list.Items {
		if current[i.Labels[agentLabel]] {
			continue
		}
		if _, err := p.docker.ImageRemove(ctx, i.ID, client.ImageRemoveOptions{}); err != nil && !errdefs.IsConflict(err) {
			p.log.LogAttrs(ctx, slog.LevelDebug, "a prepared image cannot be removed", slog.String("image", i.ID), slog.Any("error", err))
		}
	}
}
