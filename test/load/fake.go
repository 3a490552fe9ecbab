//go:build linux

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/sandgate/sandgate/providers/fake"
	"github.com/sandgate/sandgate/server"
	"github.com/sandgate/sandgate/server/authn"
	"github.com/sandgate/sandgate/server/listen"
)

// drainTime bounds the shutdown of the server with the fake provider.
const drainTime = 30 * time.Second

// serveFake is "sandgate serve" with the fake provider: server and agents are in this
// process. It takes those flags of "sandgate serve" that the load needs, and deletes
// its sandboxes when it ends.
func serveFake(ctx context.Context) (err error) {
	flags := flag.NewFlagSet("serve", flag.ContinueOnError)
	address := flags.String("listen", "127.0.0.1:0", "address")
	dir := flags.String("state-dir", "", "directory of the sandboxes")
	tokens := flags.String("tokens-file", "", "file of hashed tokens")
	admin := flags.String("admin-listen", "", "address for /metrics")
	if err := flags.Parse(os.Args[2:]); err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	// The sandboxes of a process that was killed have ended with it.
	if err := errors.Join(os.RemoveAll(*dir), os.MkdirAll(*dir, 0o700)); err != nil {
		return err
	}
	machine := fake.NewMachine(*dir, fake.Config{})
	provider := machine.Open()
	// A sandbox that was deleted leaves nothing.
	defer func() {
		left, globErr := filepath.Glob(filepath.Join(*dir, "*"))
		if len(left) > 0 {
			err = errors.Join(err, fmt.Errorf("left after delete: %v", left))
		}
		err = errors.Join(err, globErr, provider.Close(), machine.Close())
	}()
	config := server.Config{Provider: provider, Logger: log}
	config.Announce = func(at net.Addr) {
		fmt.Fprintf(os.Stderr, "sandgate with the fake provider serves at %v, no TLS\n", at)
	}
	if config.Authenticator, err = authn.OpenTokens(*tokens, log); err != nil {
		return err
	}
	s, err := server.New(config)
	if err != nil {
		return err
	}
	l, err := listen.Open(ctx, *address)
	if err != nil {
		return err
	}
	metrics, err := listen.Open(ctx, *admin)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	web := &http.Server{Handler: s.AdminHandler(false), ReadHeaderTimeout: time.Second}
	go func() { _ = web.Serve(metrics) }()
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	<-ctx.Done()
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTime)
	defer cancel()
	return errors.Join(s.Shutdown(ending), <-served, web.Close())
}
