//go:build linux

// Command load puts a server under mixed load over TCP and compares every byte that
// comes back.
//
//	go run ./test/load                 # 2 000 sandboxes of the fake provider, then 200 of the local one
//	go run ./test/load -for 10s -local 0 -seed 7
//	go run ./test/load -soak           # an hour, see below
//
// Each tenant has a token, a connection and a watch of its own, and sees only its own
// sandboxes. The program prints the latency of each call and the memory of the server.
// It fails on the first wrong byte, wrong list, missing event or error of a call, and if
// a sandbox, process, cgroup, mount or loop device is left.
//
// With -soak it keeps a steady load on a server with the local provider, kills the
// server now and then, and samples what server and sandboxes hold. It fails if any of
// that grows.
//
// The seed fixes which calls each worker makes, in which order and with which content;
// how workers overlap is the scheduler's choice. The local provider needs root, runc,
// and the program that `make build` makes, or SANDGATE_BIN.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"github.com/sandgate/sandgate/bench/report"
)

// options are the flags.
type options struct {
	soak                          bool
	duration, every               time.Duration
	calls                         int64
	seed                          uint64
	tenants, fake, local, workers int
	kills                         int
	samples                       string
}

// soakDefaults are the defaults of flags that differ with -soak.
var soakDefaults = map[string]string{"for": "1h", "tenants": "8", "local": "24", "workers": "8"}

func main() {
	if len(os.Args) > 1 && os.Args[1] == "serve" { // as daemon.Start calls it
		report.Main("load serve", serveFake)
		return
	}
	report.Main("load", run)
}

func run(ctx context.Context) error {
	o := options{}
	o.define(flag.CommandLine)
	flag.Parse()
	if err := o.complete(flag.CommandLine); err != nil {
		return err
	}
	fmt.Printf("load: seed %d\n", o.seed)
	if o.soak {
		return (&load{options: o, provider: "local", sandboxes: o.local}).run(ctx, os.Stdout)
	}
	for _, l := range []*load{{provider: "fake", sandboxes: o.fake}, {provider: "local", sandboxes: o.local}} {
		l.options = o
		if l.sandboxes == 0 {
			continue
		}
		if err := l.run(ctx, os.Stdout); err != nil {
			return fmt.Errorf("%s, again with -seed %d: %w", l.provider, o.seed, err)
		}
	}
	return nil
}

// define defines the flags.
func (o *options) define(flags *flag.FlagSet) {
	flags.BoolVar(&o.soak, "soak", false, "keep a steady load on the local provider, and fail if something grows")
	flags.DurationVar(&o.duration, "for", time.Minute, "for how long to make calls, with each provider; with -soak 1h")
	flags.Int64Var(&o.calls, "calls", 10_000_000, "how many calls to make at most, with each provider")
	flags.Uint64Var(&o.seed, "seed", 0, "fixes all choices; 0: a new one, which is printed")
	flags.IntVar(&o.tenants, "tenants", 200, "how many tenants, at most one for each sandbox; with -soak 8")
	flags.IntVar(&o.fake, "fake", 2000, "how many sandboxes of the fake provider; 0: leave it out")
	flags.IntVar(&o.local, "local", 200, "how many sandboxes of the local provider; 0: leave it out; with -soak 24")
	flags.IntVar(&o.workers, "workers", 16, "how many calls run at once, at most one for each tenant; with -soak 8")
	flags.IntVar(&o.kills, "kills", 1, "with -soak: how often to kill the server and start it again")
	flags.DurationVar(&o.every, "every", 0, "with -soak: time between two samples; 0: the 200th part of -for, at least 1s")
	flags.StringVar(&o.samples, "samples", "", "with -soak: a file to write the samples to, as CSV")
}

// complete sets the defaults that depend on other flags, and checks the flags.
func (o *options) complete(flags *flag.FlagSet) error {
	if o.soak {
		given := map[string]bool{}
		flags.Visit(func(f *flag.Flag) { given[f.Name] = true })
		for name, value := range soakDefaults {
			if !given[name] {
				if err := flags.Set(name, value); err != nil {
					return err
				}
			}
		}
		if o.every == 0 {
			o.every = max(time.Second, o.duration/200)
		}
		if o.local < 1 || o.kills < 0 || o.duration < time.Duration(o.kills+1)*minSamples*o.every {
			return fmt.Errorf("-soak needs sandboxes, and at least %d samples (-every %v) before and after each kill", minSamples, o.every)
		}
	}
	if o.duration <= 0 || o.tenants < 1 || o.workers < 1 || o.fake < 0 || o.local < 0 {
		return errors.New("-for, -tenants and -workers must be above 0, -fake and -local not below")
	}
	if o.seed == 0 {
		o.seed = rand.Uint64()
	}
	return nil
}
