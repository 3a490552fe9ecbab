//go:build linux

// Command scale measures what ten thousand sandboxes cost a server and the API
// server of its cluster. The sandboxes are copies of a real sandbox's objects. Their
// pods are bound to a node without a machine, whose lease this program renews. The
// server and the API server are real, as are the sandboxes that are created and
// deleted beside the copies.
//
//	go run ./test/scale          # 10 000, with both providers
//	go run ./test/scale -n 500   # a quick look
//
// It needs KUBECONFIG and works in its own namespaces, which it deletes. While agent-sandbox's objects are copied its controller must not run, so
// that provider needs the cluster of make cluster-up.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/sandgate/sandgate/bench/report"
)

// options are the flags.
type options struct {
	n         int
	providers []string
	binary    string
	beside    string
	image     string
	cluster   string
	workers   int
	window    time.Duration
	pool      int
}

func main() { report.Main("scale", run) }

func run(ctx context.Context) error {
	o := options{}
	flag.IntVar(&o.n, "n", 10_000, "how many sandboxes")
	which := flag.String("provider", "kubernetes,agentsandbox", "providers to measure")
	flag.StringVar(&o.binary, "sandgate", "bin/sandgate", "the sandgate binary")
	flag.StringVar(&o.beside, "beside", "", "another sandgate binary, to be measured on the tenth part of the sandboxes")
	flag.StringVar(&o.image, "image", "docker.io/sandgate/busybox:test", "image of the sandboxes that really run")
	flag.StringVar(&o.cluster, "cluster", ".tools/cluster/cluster", "the program that runs the test cluster, to stop agent-sandbox's controller")
	flag.IntVar(&o.workers, "workers", 24, "how many requests make the copies at once")
	flag.DurationVar(&o.window, "window", 30*time.Second, "for how long to watch a server that nobody calls")
	flag.IntVar(&o.pool, "pool", 100, "how many pods the pool has whose keeping is measured")
	flag.Parse()
	if o.n < 10 || o.window < time.Second {
		return errors.New("-n must be at least 10, and -window at least 1s")
	}
	o.providers = strings.Split(*which, ",")
	if err := report.Absolute(&o.binary, &o.beside, &o.cluster); err != nil {
		return err
	}
	began := time.Now()
	c, err := newTestbed(ctx, o)
	if err != nil {
		return err
	}
	defer c.close()
	var over []string
	for _, provider := range o.providers {
		t := &table{provider: provider}
		err := c.measure(ctx, provider, t)
		t.print(os.Stdout)
		if err != nil {
			return fmt.Errorf("%s: %w", provider, err)
		}
		over = append(over, t.over...)
	}
	fmt.Printf("took %v; load average %s\n", time.Since(began).Round(time.Second), report.LoadAverage())
	if len(over) > 0 {
		return fmt.Errorf("more than it should be: %s", strings.Join(over, "; "))
	}
	return nil
}
