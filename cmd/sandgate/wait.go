package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/term"

	sandgate "github.com/sandgate/sandgate/clients/go"
	"github.com/sandgate/sandgate/cmd/sandgate/internal/terminal"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// waitInterval is how often a creation that takes long is asked what it waits for.
const waitInterval = time.Second

// create creates a sandbox. On a terminal it shows what a long creation waits for, such
// as the pull of an image.
func (c *cli) create(ctx context.Context, client *sandgate.Client, request sandgate.CreateRequest) (*sandgate.Sandbox, bool, error) {
	file, ok := c.stderr.(*os.File)
	if c.json() || !ok || !term.IsTerminal(int(file.Fd())) {
		return client.Create(ctx, request)
	}
	// As the client does: only this call knows a new id, so it created the sandbox.
	own := request.ID == ""
	if own {
		request.ID = "sb-" + strings.ToLower(rand.Text()[:16])
	}
	watch, stop := context.WithCancelCause(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		showProgress(watch, file, waitInterval, client.Sandbox(request.ID).Info)
	}()
	sandbox, created, err := client.Create(ctx, request)
	stop(nil)
	<-ended
	return sandbox, own || created, err
}

// showProgress shows, until ctx ends, the message of a sandbox that is being created,
// in a line that it clears.
func showProgress(ctx context.Context, out interface{ WriteString(string) (int, error) }, every time.Duration, info func(context.Context) (*sandgate.Info, error)) {
	const clearLine = "\r\x1b[K"
	tick := time.NewTicker(every)
	defer tick.Stop()
	shown := false
	defer func() {
		if shown {
			_, _ = out.WriteString(clearLine)
		}
	}()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		got, err := info(ctx)
		if err != nil || got.GetState() != sandboxv1.SandboxState_SANDBOX_STATE_CREATING || got.GetStateMessage() == "" {
			continue
		}
		_, _ = out.WriteString(fmt.Sprintf("%s%s", clearLine, terminal.Clean(got.GetStateMessage())))
		shown = true
	}
}
