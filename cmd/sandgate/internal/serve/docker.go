package serve

import (
	"context"
	"log/slog"
	"path/filepath"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/docker"
)

type dockerConfig struct {
	Host      string `yaml:"host" flag:"docker-host" help:"address of the Docker daemon, such as unix:///var/run/docker.sock (default $DOCKER_HOST, or the platform's own)"`
	Image     string `yaml:"image" flag:"docker-image" help:"image of sandboxes whose template and request name none"`
	Transport string `yaml:"transport" flag:"docker-transport" help:"how agents are reached: socket, in a directory that daemon and server share; exec, through the daemon; auto, by socket where it works, else by exec" enum:"auto socket exec"`
}

func newDocker(ctx context.Context, c config, logger *slog.Logger) (providers.Provider, error) {
	return docker.New(ctx, c.docker(logger))
}

func checkDocker(c config) (providers.OptionsChecker, providers.Resources, error) {
	c.StateDir = "/" // serve makes it absolute.
	options, err := docker.Check(c.docker(discard))
	return options, docker.DefaultResources(), err
}

func (c config) docker(logger *slog.Logger) docker.Config {
	return docker.Config{
		StateDir: filepath.Join(c.StateDir, "docker"), Host: c.Docker.Host, Image: c.Docker.Image,
		Transport: docker.Transport(c.Docker.Transport), Agent: agentOf(c), Logger: logger,
	}
}
