// Command kubernetes measures Sandgate on a cluster beside what people use there
// now: an exec by client-go for each command, kubectl cp, a claim of agent-sandbox
// by hand, and packages for deepagents. Both sides take turns in one run, on the
// same pod or on pods of the same spec; the ratio counts.
//
// It needs KUBECONFIG, and on a cluster of its own what make bench-kubernetes
// prepares. It works in namespaces of its own and deletes them:
//
//	go run ./bench/kubernetes              # every row
//	go run ./bench/kubernetes -run peer    # rows whose name contains "peer"
//	go run ./bench/kubernetes -run pod-ip  # one transport
package main

import (
	"context"
	"errors"
	"flag"
	"os"
	"strings"

	"github.com/sandgate/sandgate/bench/report"
)

// transport is how a server reaches its pods, as its flag names it.
type transport string

// transports are those that are measured: each with rows of its own, and each
// beside the packages.
var transports = []transport{"exec", "pod-ip"}

// of names a provider with a transport, in the report.
func (by transport) of(provider string) string { return provider + " by " + string(by) }

func rows() []report.Row[*bench] {
	var rows []report.Row[*bench]
	add := func(name string, run func(context.Context, *bench) ([]report.Figure, error)) {
		rows = append(rows, report.Row[*bench]{Name: name, Run: run})
	}
	// each adds a row for a transport, with the only server that it needs.
	each := func(what, provider string, by transport, run func(*bench, context.Context, transport) ([]report.Figure, error)) {
		add(what+"-"+provider+"-"+string(by), func(ctx context.Context, b *bench) ([]report.Figure, error) {
			b.keep(serverName(provider, by))
			return run(b, ctx, by)
		})
	}
	for _, by := range transports {
		each("execute", rawPods, by, (*bench).executeOnPod)
		each("copy", rawPods, by, (*bench).copyBesideKubectl)
		each("create", rawPods, by, (*bench).createOnPod)
	}
	add("peer-langchain-kubernetes", besideLangchainKubernetes)
	for _, by := range transports {
		each("execute", claimedPods, by, (*bench).executeOnClaim)
		each("create", claimedPods, by, (*bench).createOnClaim)
	}
	add("peer-langchain-k8s", besideLangchainK8s)
	add("peer-sandboxd", besideSandboxd)
	return rows
}

// The providers that are measured.
const (
	rawPods     = "kubernetes"
	claimedPods = "agentsandbox"
)

// serverName is that of a server of a provider, or of a blueprint.
func serverName(of string, by transport) string { return of + "-" + string(by) }

func main() { report.Main("bench-kubernetes", run) }

func run(ctx context.Context) error {
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
	// Pods, and processes in other directories, receive these paths.
	if err := report.Absolute(&o.binary, &o.peers); err != nil {
		return err
	}
	b, err := newBench(o)
	if err != nil {
		return err
	}
	defer b.close()

	return report.Print(ctx, os.Stdout, b, *only, rows())
}
