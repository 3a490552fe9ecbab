package docker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/client"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/dial"
	"github.com/sandgate/sandgate/providers/internal/directory"
)

const startTimeout = 30 * time.Second

var errSlowStart = fmt.Errorf("the agent did not answer within %v: %w", startTimeout, providers.ErrStartTimeout)

// awaitAgent returns a connection on which the agent has spoken.
func (p *Provider) awaitAgent(ctx context.Context, d directory.Dir, rec *record) (net.Conn, error) {
	start, cancel := context.WithTimeoutCause(ctx, startTimeout, errSlowStart)
	defer cancel()
	conn, err := driver{p}.Connect(start, d, rec)
	if err == nil {
		return conn, nil
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("wait for the agent: %w", errors.Join(context.Cause(ctx), err))
	}
	if start.Err() != nil {
		err = context.Cause(start)
	} else {
		err = fmt.Errorf("%w: %w", err, providers.ErrAgentCannotStart)
	}
	if text := p.output(ctx, rec.Container); text != "" {
		err = fmt.Errorf("%w: it wrote: %s", err, text)
	}
	return nil, err
}

// socketRetry is how soon a socket that does not answer yet is tried again, and
// endCheck how many tries there are between two looks at the container.
const (
	socketRetry = 5 * time.Millisecond
	endCheck    = 40
)

// Connect connects as soon as the agent listens. It gives up when the container has ended.
func (d driver) Connect(ctx context.Context, dir directory.Dir, rec *record) (net.Conn, error) {
	for tries := 1; ; tries++ {
		conn, err := d.Open(ctx, dir, rec)
		if err == nil {
			conn, err = dial.AwaitAgent(ctx, conn)
		}
		if err == nil {
			return conn, nil
		}
		if rec.Transport == TransportExec || tries%endCheck == 0 {
			found, inspectErr := d.docker.ContainerInspect(ctx, rec.Container, client.ContainerInspectOptions{})
			if inspectErr == nil && found.Container.State != nil && !found.Container.State.Running {
				return nil, fmt.Errorf("its container ended with exit code %d", found.Container.State.ExitCode)
			}
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(context.Cause(ctx), err)
		case <-time.After(socketRetry):
		}
	}
}

// output returns the last that a container wrote.
func (p *Provider) output(ctx context.Context, name string) string {
	logs, err := p.docker.ContainerLogs(ctx, name, client.ContainerLogsOptions{ShowStdout: true, ShowStderr: true, Tail: "5"})
	if err != nil {
		return ""
	}
	defer func() { _ = logs.Close() }()
	var out bytes.Buffer
	// What came before an error counts.
	_, _ = stdcopy.StdCopy(&out, &out, io.LimitReader(logs, 4<<10))
	return strings.TrimSpace(strings.ToValidUTF8(out.String(), "?"))
}
