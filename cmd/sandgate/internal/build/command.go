// Package build is the command "build".
package build

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/distribution/reference"
	"github.com/moby/moby/client"
	"github.com/spf13/cobra"

	"github.com/sandgate/sandgate/providers/docker/build"
	"github.com/sandgate/sandgate/providers/docker/daemon"
)

const help = `Build an image from a Dockerfile by a Docker daemon or a buildkitd, and print the name
to create sandboxes from.

With the provider docker on the same daemon, that is the image itself. --save writes it
to an archive that a server with the provider local on this machine reads. --push pushes
it to a registry, for every provider, and prints the name with the digest.

The name is a hash of the files, the arguments and the stage, and of the images that the
daemon has for the FROM instructions. What the daemon has is not built again. Not in the
hash is what RUN and ADD get from the network, or COPY from other images: --no-cache runs
them again. --pull gets new images for FROM.

The daemon's classic builder runs the Dockerfile. For RUN --mount, heredocs and other
platforms, --buildkit-host has a buildkitd run it, by the program buildctl. The name then
is a hash of the images that the registries have. Without --save and --push, the image is
loaded into the Docker daemon. docker buildx works too: give sandgate create the name of
its image.`

// flags are those of one run.
type flags struct {
	options          build.Options
	args             []string
	host, save, push string
	kitHost          string // of a buildkitd
	platform         string
	tag              string
	quiet            bool
}

// made is what the command prints.
type made struct {
	Image   string `json:"image"`
	ID      string `json:"id"`
	Reused  bool   `json:"reused"`
	Archive string `json:"archive,omitempty"`
	Pushed  string `json:"pushed,omitempty"`
}

// NewCommand returns the command. stateDir is the directory for archives and locks.
func NewCommand(stateDir string) *cobra.Command {
	f := &flags{}
	cmd := &cobra.Command{
		Use:   "build [flags] [DIR]",
		Short: "Build an image for sandboxes from a Dockerfile",
		Long:  help,
		Example: `  sandgate create --image "$(sandgate build .)"
  sandgate create --image "$(sandgate build --save .)"
  sandgate build --push registry.example/team/tools .`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			f.options.Dir = "."
			if len(args) == 1 {
				f.options.Dir = args[0]
			}
			f.options.StateDir = filepath.Join(stateDir, "builds")
			var err error
			if f.options.Args, err = arguments(f.args); err != nil {
				return err
			}
			if f.tag != "" {
				if _, err := reference.ParseNormalizedNamed(f.tag); err != nil {
					return fmt.Errorf("--tag %q: %w", f.tag, err)
				}
			}
			if !cmd.Flags().Changed("buildkit-host") {
				f.kitHost = os.Getenv("BUILDKIT_HOST")
			}
			if f.kitHost == "" && f.platform != "" {
				return errors.New("--platform needs --buildkit-host; see: sandgate build --help")
			}
			if f.kitHost != "" && f.tag != "" && f.save+f.push != "" {
				return errors.New("--tag names an image of the Docker daemon, which does not get it from a buildkitd with --save or --push")
			}
			result, err := f.run(cmd.Context(), cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			output, _ := cmd.Flags().GetString("output")
			return result.print(cmd.OutOrStdout(), output == "json")
		},
	}
	set := cmd.Flags()
	set.SortFlags = false
	set.StringVarP(&f.options.Dockerfile, "file", "f", "", "the Dockerfile, which must be in DIR (default DIR/Dockerfile)")
	set.StringArrayVar(&f.args, "build-arg", nil, "value NAME=VALUE of an ARG instruction; without =VALUE, that of the environment (repeatable)")
	set.StringVar(&f.options.Target, "target", "", "stage to build (default: the last one)")
	set.StringVarP(&f.tag, "tag", "t", "", "another name for the image in the daemon")
	set.StringVar(&f.save, "save", "", "write the image to an archive in this directory, for the provider local")
	set.Lookup("save").NoOptDefVal = filepath.Join(stateDir, "builds")
	set.StringVar(&f.push, "push", "", "push the image under this name; without a tag, under its hash")
	set.BoolVar(&f.options.Pull, "pull", false, "ask the registries for newer images of the FROM instructions")
	set.BoolVar(&f.options.NoCache, "no-cache", false, "run all instructions again")
	set.StringVar(&f.options.Network, "network", "", `network of RUN instructions, such as "none" or "host" (default: the daemon's)`)
	set.StringVar(&f.host, "docker-host", "", "address of the Docker daemon (default $DOCKER_HOST, or the platform's own)")
	set.StringVar(&f.kitHost, "buildkit-host", "", "address of a buildkitd that builds, by the program buildctl (default $BUILDKIT_HOST; empty: the Docker daemon builds)")
	set.StringVar(&f.platform, "platform", "", `platform of the image, such as "linux/arm64", by a buildkitd (default: Linux on this machine's architecture)`)
	set.BoolVarP(&f.quiet, "quiet", "q", false, "do not print the daemon's output")
	return cmd
}

// run builds and delivers the image.
func (f *flags) run(ctx context.Context, output io.Writer) (m made, err error) {
	if f.quiet {
		output = io.Discard
	}
	f.options.Output = output
	c, err := daemon.NewClient(f.host)
	if err != nil {
		return made{}, err
	}
	defer func() { _ = c.Close() }()
	if f.kitHost != "" {
		return f.runKit(ctx, c)
	}
	if err := daemon.Connect(ctx, c); err != nil {
		return made{}, err
	}
	result, err := build.Build(ctx, c, f.options)
	if err != nil {
		return made{}, err
	}
	m = made{Image: result.Image, ID: result.ID, Reused: result.Reused}
	if err := f.tagIn(ctx, c, result.ID); err != nil {
		return made{}, err
	}
	if f.save != "" {
		if m.Archive, err = build.Save(ctx, c, result.ID, f.save); err != nil {
			return made{}, err
		}
	}
	if f.push != "" {
		if m.Pushed, err = build.Push(ctx, c, result, f.push, output); err != nil {
			return made{}, err
		}
	}
	return m, nil
}

// runKit has a buildkitd build and deliver the image.
func (f *flags) runKit(ctx context.Context, c *client.Client) (made, error) {
	result, err := build.BuildKit(ctx, build.BuildKitOptions{
		Options: f.options, Address: f.kitHost, Platform: f.platform, Save: f.save, Push: f.push, Daemon: c,
	})
	if err != nil {
		return made{}, err
	}
	m := made{Image: result.Image, ID: result.ID, Reused: result.Reused, Archive: result.Archive, Pushed: result.Pushed}
	return m, f.tagIn(ctx, c, result.ID)
}

// tagIn gives an image of the daemon the name of --tag, if there is one.
func (f *flags) tagIn(ctx context.Context, c *client.Client, id string) error {
	if f.tag == "" {
		return nil
	}
	if _, err := c.ImageTag(ctx, client.ImageTagOptions{Source: id, Target: f.tag}); err != nil {
		return daemon.Error(ctx, c, "tag the image as "+f.tag, err)
	}
	return nil
}

// print prints the names that were asked for, one a line, or everything as JSON.
func (m made) print(out io.Writer, asJSON bool) error {
	if asJSON {
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")
		return encoder.Encode(m)
	}
	names := []string{m.Archive, m.Pushed}
	if m.Archive+m.Pushed == "" {
		names = []string{m.Image}
	}
	for _, name := range names {
		if name == "" {
			continue
		}
		if _, err := fmt.Fprintln(out, name); err != nil {
			return err
		}
	}
	return nil
}

// arguments returns the values of --build-arg. A name without a value that the
// environment does not have is left to the Dockerfile, as with docker build.
func arguments(values []string) (map[string]string, error) {
	args := make(map[string]string, len(values))
	for _, text := range values {
		name, value, ok := strings.Cut(text, "=")
		if name == "" {
			return nil, fmt.Errorf("--build-arg is NAME=VALUE or NAME, not %q; see: sandgate build --help", text)
		}
		if !ok {
			if value, ok = os.LookupEnv(name); !ok {
				continue
			}
		}
		args[name] = value
	}
	return args, nil
}
