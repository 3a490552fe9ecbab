// Command hostile measures the effect of a hostile tenant, or of an unauthenticated
// caller, on others. It runs a server with two tenants, lets the attacker use up every
// resource it can, and prints the latency of the other tenant's commands and the
// server's memory meanwhile.
//
//	go run ./test/hostile -server bin/sandgate
//
// It exits with 1 if a neighbour's p99 is above -slower times its quiet value, or
// the server's memory above -memory.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	sandgate "github.com/sandgate/sandgate/clients/go"
)

type options struct {
	server  string
	calls   int
	slower  float64
	memory  int64
	attacks string
}

// figures are the results of one attack.
type figures struct {
	name     string
	p50, p99 time.Duration
	failed   int
	memory   int64 // largest resident size of the server, in bytes
	note     string
}

func main() {
	var o options
	flag.StringVar(&o.server, "server", "bin/sandgate", "the server program")
	flag.IntVar(&o.calls, "calls", 200, "commands of the neighbour for each figure")
	flag.Float64Var(&o.slower, "slower", 3, "how much slower the neighbour's p99 may be")
	flag.Int64Var(&o.memory, "memory", 256<<20, "bytes that the server may hold")
	flag.StringVar(&o.attacks, "attacks", "", "only attacks whose name contains this")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	ok, err := run(ctx, o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "hostile:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) (ok bool, err error) {
	s, err := start(ctx, o.server)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	neighbour, err := s.sandbox(ctx, "b")
	if err != nil {
		return false, err
	}
	quiet, err := s.measure(ctx, "quiet", neighbour, o.calls)
	if err != nil {
		return false, err
	}
	out := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	row := func(f figures) bool {
		slower := float64(f.p99) / float64(quiet.p99)
		held := slower <= o.slower && f.memory <= o.memory && f.failed == 0
		verdict := "held"
		if !held {
			verdict = "MISSED"
		}
		_, _ = fmt.Fprintf(out, "%s\t%.1f ms\t%.1f ms\t%.1f x\t%d\t%d MiB\t%s\t%s\n",
			f.name, ms(f.p50), ms(f.p99), slower, f.failed, f.memory>>20, verdict, f.note)
		return held
	}
	_, _ = fmt.Fprintln(out, "attack\tneighbour's p50\tp99\tof quiet\tfailed\tserver's memory\t\t")
	ok = row(quiet)
	for _, a := range attacks {
		if !strings.Contains(a.name, o.attacks) {
			continue
		}
		f, err := s.under(ctx, a, neighbour, o.calls)
		if err != nil {
			return false, fmt.Errorf("%s: %w", a.name, err)
		}
		ok = row(f) && ok
	}
	return ok, out.Flush()
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// errMeasured ends an attack.
var errMeasured = errors.New("measured")

// under measures the neighbour during an attack.
func (s *host) under(ctx context.Context, a attack, neighbour *sandgate.Sandbox, calls int) (figures, error) {
	attacking, cancel := context.WithCancelCause(ctx)
	end := func() { cancel(errMeasured) }
	begun, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- a.run(attacking, s, func() { close(begun) }) }()
	select {
	case <-begun:
	case err := <-ended:
		end()
		return figures{}, fmt.Errorf("it ended before it had begun: %w", err)
	}
	f, err := s.measure(ctx, a.name, neighbour, calls)
	early := len(ended) > 0
	end()
	if e := <-ended; early {
		f.note = fmt.Sprintf("ended early: %v", e)
	}
	return f, err
}

// measure runs commands in the neighbour's sandbox, one after the other.
func (s *host) measure(ctx context.Context, name string, box *sandgate.Sandbox, calls int) (figures, error) {
	f := figures{name: name}
	took := make([]time.Duration, 0, calls)
	for range calls {
		begin := time.Now()
		result, err := box.Execute(ctx, sandgate.ExecuteRequest{Argv: []string{"true"}})
		if ctx.Err() != nil {
			return f, ctx.Err()
		}
		if err != nil || result.Exit.GetExitCode() != 0 {
			f.failed++
		}
		took = append(took, time.Since(begin))
		memory, err := s.server.Memory("VmRSS")
		if err != nil {
			return f, err
		}
		f.memory = max(f.memory, memory)
	}
	slices.Sort(took)
	f.p50, f.p99 = took[len(took)/2], took[len(took)*99/100]
	return f, nil
}
