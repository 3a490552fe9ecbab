// Command kubernetes measures Sandgate on a cluster beside what people use there
// now: an exec by client-go for each command, kubectl cp, a claim of agent-sandbox
// by hand, and two packages for deepagents. Both sides take turns in one run, on
// the same pod or on pods of the same spec; the ratio counts.
//
// It needs KUBECONFIG, and on a cluster of its own what make bench-kubernetes
// prepares. It works in namespaces of its own and deletes them:
//
//	go run ./bench/kubernetes            # every row
//	go run ./bench/kubernetes -run peer  # rows whose name contains "peer"
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/sandgate/sandgate/bench/report"
)

// measurement is what a row runs.
type measurement = func(ctx context.Context, b *bench) ([]report.Figure, error)

func rows() []report.Row[*bench] {
	return []report.Row[*bench]{
		{Name: "execute-kubernetes", Run: executeOnPod(byExec)},
		{Name: "copy-kubernetes", Run: copyBesideKubectl(byExec)},
		{Name: "create-kubernetes", Run: createOnPod(byExec)},
		{Name: "pod-ip-execute-kubernetes", Run: executeOnPod(byAddress)},
		{Name: "pod-ip-copy-kubernetes", Run: copyBesideKubectl(byAddress)},
		{Name: "pod-ip-create-kubernetes", Run: createOnPod(byAddress)},
		{Name: "peer-langchain-kubernetes", Run: besideLangchainKubernetes},
		{Name: "execute-agentsandbox", Run: executeOnClaim},
		{Name: "create-agentsandbox", Run: createOnClaim},
		{Name: "peer-langchain-k8s", Run: besideLangchainK8s},
		{Name: "peer-sandboxd", Run: besideSandboxd},
	}
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench-kubernetes:", err)
		os.Exit(1)
	}
}

func run() error {
	var (
		only = flag.String("run", "", "only rows whose name contains this")
		o    options
	)
	flag.StringVar(&o.binary, "sandgate", "bin/sandgate", "the sandgate binary")
	flag.StringVar(&o.image, "image", "docker.io/sandgate/python:test", "image with python3 and tar, for every pod")
	flag.StringVar(&o.python, "python", "clients/python/.venv/bin/python", "interpreter that has Sandgate's client")
	flag.StringVar(&o.peers, "peers", ".tools/peers", "where bench/kubernetes/peers/setup.sh installed the peers")
	flag.Float64Var(&o.scale, "scale", 1, "multiplies counts and sizes; below 1 for a quick look")
	flags := flag.String("serve-flags", "", "more flags for `sandgate serve`, separated by spaces")
	flag.Parse()
	if o.scale <= 0 {
		return errors.New("-scale must be above 0")
	}
	o.flags = strings.Fields(*flags)
	// Pods and processes of other directories are told of these.
	for _, path := range []*string{&o.binary, &o.peers} {
		absolute, err := filepath.Abs(*path)
		if err != nil {
			return err
		}
		*path = absolute
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	b, err := newBench(ctx, o)
	if err != nil {
		return err
	}
	defer b.close()

	return report.Print(ctx, os.Stdout, b, *only, rows())
}
