// Package build builds images for templates from Dockerfiles, by a Docker daemon.
package build

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/moby/moby/api/types/build"
	"github.com/moby/moby/api/types/jsonstream"
	"github.com/moby/moby/client"

	"github.com/sandgate/sandgate/providers/docker/daemon"
	"github.com/sandgate/sandgate/providers/internal/lock"
)

var (
	// ErrInput is wrapped if the directory, the Dockerfile or a name cannot be used.
	ErrInput = errors.New("cannot build this")
	// ErrFailed is wrapped if the daemon rejects the Dockerfile or a registry the image,
	// or if a command of the Dockerfile failed.
	ErrFailed = errors.New("the build failed")
)

// Repository has the images that Build makes, by hash. Nobody can publish images with
// such a name: a server that lacks one never gets it from elsewhere.
const Repository = "localhost/sandgate-build"

// Options describe a build.
type Options struct {
	// Dir is the directory of the build context. Required.
	Dir string
	// Dockerfile is its path, which must be in Dir. Default: Dir/Dockerfile.
	Dockerfile string
	// Args are the values of the Dockerfile's ARG instructions.
	Args map[string]string
	// Target is the stage to build. Default: the last one.
	Target string
	// Network is the network of RUN instructions, such as "none". Default: the
	// daemon's default. It is not a part of the hash.
	Network string
	// Pull asks the registries for the images that stages begin with, even if the
	// daemon has them. The image is then built anew unless the daemon's cache has it.
	Pull bool
	// NoCache runs all instructions again.
	NoCache bool
	// StateDir is a directory for lock files, which builds of one user share. Required.
	StateDir string
	// Output receives the daemon's output, line by line. Default: none.
	Output io.Writer
}

// Result is an image of the daemon.
type Result struct {
	// Image is the name: Repository, and as the tag the hash of what was built.
	Image string
	// ID is the daemon's id of the image.
	ID string
	// Reused reports that the daemon had the image from an earlier build.
	Reused bool
}

// Build builds an image, unless the daemon has it: equal build contexts, arguments and
// targets, on the same images to begin with, have one name. Of several calls at once that
// build the same, one builds, and the others wait for it and reuse its image.
func Build(ctx context.Context, c *client.Client, o Options) (Result, error) {
	if o.Output == nil {
		o.Output = io.Discard
	}
	s, err := take(ctx, o.Dir, o.Dockerfile)
	if err != nil {
		return Result{}, err
	}
	defer func() { _ = s.close() }()
	if err := os.MkdirAll(o.StateDir, 0o700); err != nil {
		return Result{}, err
	}
	content := digest(append(argList(o.Args), "context", s.hash, "file", s.dockerfile, "target", o.Target)...)
	held, err := lock.NewTable(o.StateDir).Acquire(ctx, "build-"+content)
	if err != nil {
		return Result{}, err
	}
	defer held.Release(true)

	names := bases(s.text, o.Args)
	begin, err := present(ctx, c, names)
	if err != nil {
		return Result{}, err
	}
	if !o.Pull && !o.NoCache {
		name := imageName(content, begin)
		id, err := find(ctx, c, name)
		if err != nil || id != "" {
			return Result{Image: name, ID: id, Reused: true}, err
		}
	}
	id, err := runAgain(ctx, c, s, o, names)
	if err != nil {
		return Result{}, err
	}
	// The daemon may have pulled some of them just now.
	end, err := present(ctx, c, names)
	if err != nil {
		return Result{}, err
	}
	if !o.Pull {
		maps.Copy(end, begin)
	}
	name := imageName(content, end)
	return Result{Image: name, ID: id}, tag(ctx, c, id, name)
}

func tag(ctx context.Context, c *client.Client, id, name string) error {
	if _, err := c.ImageTag(ctx, client.ImageTagOptions{Source: id, Target: name}); err != nil {
		return daemon.Error(ctx, c, "tag the image as "+name, err)
	}
	return nil
}

// attempts is how often a build is tried that no command of the Dockerfile has failed.
const attempts = 3

// runAgain runs a build that the daemon could not do once more. Its builder fails when
// anybody removes an image while it looks for cached ones, and what an earlier attempt
// has done is in its cache. A command that fails has an exit code, and is not repeated.
func runAgain(ctx context.Context, c *client.Client, s *snapshot, o Options, bases []string) (string, error) {
	for attempt := 1; ; attempt++ {
		id, err := run(ctx, c, s, o, bases)
		failure := (*jsonstream.Error)(nil)
		if attempt == attempts || !errors.As(err, &failure) || failure.Code != 0 {
			return id, err
		}
		fmt.Fprintf(o.Output, "trying again: %s\n", strip(failure.Message))
	}
}

// run has the daemon build a context and returns the id of the image.
func run(ctx context.Context, c *client.Client, s *snapshot, o Options, bases []string) (string, error) {
	auths, err := credentials(ctx, bases)
	if err != nil {
		return "", err
	}
	args := make(map[string]*string, len(o.Args))
	for name, value := range o.Args {
		args[name] = &value
	}
	// Not closed by the request: the file may be sent again.
	if _, err := s.file.Seek(0, io.SeekStart); err != nil {
		return "", err
	}
	response, err := c.ImageBuild(ctx, io.NopCloser(s.file), client.ImageBuildOptions{
		Dockerfile: s.dockerfile, BuildArgs: args, Target: o.Target, NetworkMode: o.Network, AuthConfigs: auths,
		PullParent: o.Pull, NoCache: o.NoCache, Remove: true, ForceRemove: true, Version: build.BuilderV1,
	})
	if errdefs.IsInvalidArgument(err) {
		return "", fmt.Errorf("%w: %w", ErrFailed, err)
	}
	if err != nil {
		return "", daemon.Error(ctx, c, "build the image", err)
	}
	defer func() { _ = response.Body.Close() }()
	id := ""
	err = follow(ctx, c, response.Body, o.Output, func(aux json.RawMessage) {
		var result build.Result
		if json.Unmarshal(aux, &result) == nil && result.ID != "" {
			id = result.ID
		}
	})
	if err == nil && id == "" {
		err = fmt.Errorf("%w: the daemon reports no image", ErrFailed)
	}
	return id, err
}

// follow prints the messages of a request until it ends.
func follow(ctx context.Context, c *client.Client, messages io.Reader, output io.Writer, aux func(json.RawMessage)) error {
	out := &lines{to: output}
	defer out.flush()
	for decoder := json.NewDecoder(messages); ; {
		var m jsonstream.Message
		switch err := decoder.Decode(&m); {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return daemon.Error(ctx, c, "read the daemon's output", err)
		}
		switch {
		case m.Error != nil:
			return fmt.Errorf("%w: %w", ErrFailed, m.Error)
		case m.Aux != nil:
			aux(*m.Aux)
		case m.Stream != "":
			out.write(m.Stream)
		case m.Status != "" && (m.Progress == nil || m.Progress.Total == 0):
			if m.ID != "" {
				m.Status = m.ID + ": " + m.Status
			}
			out.write(m.Status + "\n")
		}
	}
}

// present returns the ids of those images that the daemon has.
func present(ctx context.Context, c *client.Client, names []string) (map[string]string, error) {
	found := make(map[string]string)
	for _, name := range names {
		if _, err := reference.ParseAnyReference(name); err != nil {
			continue // the builder reports it with the line
		}
		id, err := find(ctx, c, name)
		if err != nil {
			return nil, err
		}
		if id != "" {
			found[name] = id
		}
	}
	return found, nil
}

// find returns the id of an image, and "" if the daemon does not have it.
func find(ctx context.Context, c *client.Client, name string) (string, error) {
	found, err := c.ImageInspect(ctx, name)
	if errdefs.IsNotFound(err) {
		return "", nil
	}
	if err != nil {
		return "", daemon.Error(ctx, c, "inspect image "+name, err)
	}
	return found.ID, nil
}

func imageName(content string, bases map[string]string) string {
	parts := []string{content}
	for _, name := range slices.Sorted(maps.Keys(bases)) {
		parts = append(parts, name, bases[name])
	}
	return Repository + ":" + digest(parts...)
}

func argList(args map[string]string) []string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(args)) {
		out = append(out, "arg", name, args[name])
	}
	return out
}

// digest hashes texts; no two lists give the same input.
func digest(texts ...string) string {
	sum := sha256.New()
	for _, text := range texts {
		fmt.Fprintf(sum, "%d:%s", len(text), text)
	}
	return hex.EncodeToString(sum.Sum(nil))
}
