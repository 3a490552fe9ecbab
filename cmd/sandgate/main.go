// Command sandgate is the server and the command line of Sandgate: sandboxes for
// AI agents behind one endpoint.
package main

import (
	"context"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"

	// The certificate authorities for a system without any, such as the image from scratch.
	_ "golang.org/x/crypto/x509roots/fallback"
)

// version is set by the linker, else by the module's version, as "go install" knows it.
var version = "dev"

func main() {
	if info, ok := debug.ReadBuildInfo(); ok && version == "dev" && strings.HasPrefix(info.Main.Version, "v") {
		version = info.Main.Version
	}
	ctx, stop := notify(context.Background())
	c := &cli{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr}
	code := c.run(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}

// signalled is the cause of a context that a signal ended.
type signalled struct{ signal syscall.Signal }

func (s signalled) Error() string { return s.signal.String() }

// notify returns a context that ends with the first interrupt or termination. A
// second one ends the program at once.
//
// A write to a pipe without a reader must not end the program before it has cleaned
// up. So SIGPIPE is caught, and the failed write returns EPIPE.
func notify(parent context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(parent)
	signals := make(chan os.Signal, 1)
	pipes := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	signal.Notify(pipes, syscall.SIGPIPE)
	go func() {
		select {
		case s := <-signals:
			number, _ := s.(syscall.Signal)
			cancel(signalled{number})
		case <-ctx.Done():
		}
		signal.Stop(signals)
	}()
	return ctx, func() { cancel(nil) }
}
