// Command bench measures Sandgate beside yardsticks in the same run and prints
// ratios. Absolute times mean little on a shared machine; a ratio within one
// run does.
//
// It needs root, runc and the binaries that `make build` makes:
//
//	go run ./bench            # every row
//	go run ./bench -run exec  # rows whose name contains "exec"
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"

	"github.com/sandgate/sandgate/bench/report"
)

func rows() []report.Row[*bench] {
	return []report.Row[*bench]{
		{Name: "execute", Run: executeLatency},
		{Name: "execute-observed", Run: executeObserved},
		{Name: "execute-fair", Run: executeFair},
		{Name: "breakdown", Run: executeBreakdown},
		{Name: "stdout", Run: stdoutThroughput},
		{Name: "upload", Run: uploadThroughput},
		{Name: "download", Run: downloadThroughput},
		{Name: "forward", Run: forwardThroughput},
		{Name: "forward-beside", Run: executeBesideForward},
		{Name: "egress", Run: egressRequests},
		{Name: "egress-secret", Run: egressSecret},
		{Name: "egress-idle", Run: egressIdle},
		{Name: "egress-bulk", Run: egressThroughput},
		{Name: "egress-beside", Run: executeBesideEgress},
		{Name: "preview", Run: previewRequests},
		{Name: "preview-bulk", Run: previewThroughput},
		{Name: "create", Run: createToFirstCommand},
		{Name: "create-pool", Run: claimToFirstCommand},
		{Name: "memory", Run: idleMemory},
		{Name: "concurrent", Run: concurrentExecutes},
		{Name: "docker", Run: dockerRows},
		{Name: "image", Run: imageRows},
	}
}

// parts are what this program does in processes of their own, as the server is one.
func parts() map[string]func([]string) error {
	return map[string]func([]string) error{
		yardstickCommand: serveYardstick,
		listenCommand:    func([]string) error { return listen() },
		connectCommand:   connect,
		guardCommand:     guard,
		requestCommand:   request,
		reverseCommand:   reverse,
	}
}

func main() {
	if len(os.Args) > 1 {
		if part := parts()[os.Args[1]]; part != nil {
			if err := part(os.Args[2:]); err != nil {
				fmt.Fprintf(os.Stderr, "bench: %s: %v\n", os.Args[1], err)
				os.Exit(1)
			}
			return
		}
	}
	report.Main("bench", run)
}

func run(ctx context.Context) error {
	var (
		only   = flag.String("run", "", "only rows whose name contains this")
		binary = flag.String("sandgate", "bin/sandgate", "the sandgate binary")
		scale  = flag.Float64("scale", 1, "multiplies counts and sizes; below 1 for a quick look")
		flags  = flag.String("serve-flags", "", "more flags for `sandgate serve`, separated by spaces")
	)
	flag.Parse()
	if os.Geteuid() != 0 {
		return errors.New("the local provider's sandboxes need root: run it with sudo")
	}
	if *scale <= 0 {
		return errors.New("-scale must be above 0")
	}
	b, err := newBench(ctx, *binary, strings.Fields(*flags), *scale)
	if err != nil {
		return err
	}
	defer b.close()

	return report.Print(ctx, os.Stdout, b, *only, rows())
}
