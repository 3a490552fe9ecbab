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
	"time"
)

// row is one measurement.
type row struct {
	name string
	run  func(ctx context.Context, b *bench) ([]figure, error)
}

func rows() []row {
	return []row{
		{"execute-kubernetes", executeOnPod},
		{"copy-kubernetes", copyBesideKubectl},
		{"create-kubernetes", createOnPod},
		{"peer-langchain-kubernetes", besideLangchainKubernetes},
		{"execute-agentsandbox", executeOnClaim},
		{"create-agentsandbox", createOnClaim},
		{"peer-langchain-k8s", besideLangchainK8s},
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

	began := time.Now()
	var failed, notes []string
	printHeader(os.Stdout)
	for _, r := range rows() {
		if !strings.Contains(r.name, *only) {
			continue
		}
		figures, err := r.run(ctx, b)
		for _, f := range figures {
			f.print(os.Stdout)
			if f.note != "" {
				notes = append(notes, f.what+": "+f.note)
			}
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		var cannot *cannotRun
		switch {
		case errors.As(err, &cannot):
			notes = append(notes, r.name+" was left out: "+cannot.reason)
		case err != nil:
			notes = append(notes, r.name+" failed: "+err.Error())
			failed = append(failed, r.name)
		}
	}
	for _, note := range notes {
		fmt.Println("-", note)
	}
	fmt.Printf("took %v; load average %s\n", time.Since(began).Round(time.Second), loadAverage())
	if len(failed) > 0 {
		return fmt.Errorf("rows failed: %s", strings.Join(failed, ", "))
	}
	return nil
}

// loadAverage tells how busy the machine was.
func loadAverage() string {
	data, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	return strings.Join(strings.Fields(string(data))[:3], " ")
}
