//go:build linux

// Command chaos proves that nothing is lost when connections break. It cuts the
// connections between clients and server, and between server and agents, at
// moments that a seed chooses, on real sockets and real sandboxes, while many
// commands and copies run; and it compares every byte, position and end.
//
//	go run ./test/chaos                    # 10 000 cuts
//	go run ./test/chaos -cuts 300 -seed 7  # a small part, always with the same choices
//	go run ./test/chaos -storm 10m         # something else: see below
//
// With -storm it kills the server itself, again and again, while two tenants
// make, use and delete sandboxes and a pool is filled. Then nothing may be
// stuck, missing, doubled or left over.
//
// The seed fixes what is cut, run and copied, and after how many bytes or how
// much time; what is in flight then is the scheduler's choice. It needs root,
// runc, and the program that `make build` makes, or SANDGATE_BIN.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	sandgate "github.com/sandgate/sandgate/clients/go"
)

// options are the flags.
type options struct {
	cuts, restarts          int64
	seed                    uint64
	transports              []string
	workers, clients, boxes int
	serve                   []string
	limit, breaks, storm    time.Duration
}

func main() {
	o := options{}
	flag.Int64Var(&o.cuts, "cuts", 10_000, "how many connections to cut, over all transports")
	flag.Int64Var(&o.restarts, "restarts", 4, "how often to kill the server and start it again, with each transport")
	flag.Uint64Var(&o.seed, "seed", 0, "fixes all choices; 0: a new one, which is printed")
	transport := flag.String("transport", "socket,exec", "transports to the agent, one after the other: socket, exec")
	flag.IntVar(&o.workers, "workers", 24, "how many jobs run at once")
	flag.IntVar(&o.clients, "clients", 16, "how many connections they share")
	flag.IntVar(&o.boxes, "sandboxes", 4, "how many sandboxes they share")
	flag.DurationVar(&o.breaks, "breaks", 100*time.Millisecond, "mean time between two breaks of connections to agents")
	flag.DurationVar(&o.limit, "limit", 30*time.Minute, "when to give up, for each transport")
	flag.DurationVar(&o.storm, "storm", 0, "for how long to kill the server in a storm of creations and deletions, with each transport, instead of cutting connections")
	serve := flag.String("serve", "", "more flags for the server, separated by spaces")
	flag.Parse()
	o.transports, o.serve = strings.Split(*transport, ","), strings.Fields(*serve)
	if o.seed == 0 {
		o.seed = rand.Uint64()
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if o.storm > 0 {
		fmt.Printf("chaos: seed %d\n", o.seed)
		ok := true
		for _, transport := range o.transports {
			ok = killStorm(ctx, o, transport) && ok
		}
		if !ok {
			fmt.Printf("chaos: FAILED; again with: go run ./test/chaos -storm %v -transport %s -workers %d -seed %d\n", o.storm, *transport, o.workers, o.seed)
			os.Exit(1)
		}
		return
	}
	if !run(ctx, o) {
		fmt.Printf("chaos: FAILED; again with: go run ./test/chaos -cuts %d -restarts %d -transport %s -seed %d\n", o.cuts, o.restarts, *transport, o.seed)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) bool {
	fmt.Printf("chaos: seed %d\n", o.seed)
	dir, err := os.MkdirTemp("", "sandgate-chaos-writer-")
	if err != nil {
		fmt.Println("chaos:", err)
		return false
	}
	defer func() { _ = os.RemoveAll(dir) }()
	writer := filepath.Join(dir, "writer")
	build := exec.CommandContext(ctx, "go", "build", "-ldflags", "-s -w", "-o", writer, "github.com/sandgate/sandgate/test/chaos/writer")
	build.Env, build.Stderr = append(os.Environ(), "CGO_ENABLED=0"), os.Stderr
	if err := build.Run(); err != nil {
		fmt.Println("chaos: build the writer:", err)
		return false
	}
	ok := true
	for i, transport := range o.transports {
		if ctx.Err() != nil {
			return false
		}
		share := o.cuts / int64(len(o.transports))
		if i == 0 {
			share += o.cuts % int64(len(o.transports))
		}
		ok = one(ctx, o, transport, share, writer) && ok
	}
	return ok
}

// one makes its share of the cuts over one transport to the agent.
func one(ctx context.Context, o options, transport string, cuts int64, writer string) bool {
	ctx, cancel := context.WithTimeoutCause(ctx, o.limit, errors.New("it took too long"))
	defer cancel()
	t, start := new(tally), time.Now()
	h, err := newHost(ctx, transport, "", o.serve, t)
	if err != nil {
		fmt.Println("chaos:", err)
		return false
	}
	if err := loadAndCut(ctx, o, h, cuts, writer); err != nil {
		t.fail(err)
	}
	if err := h.clear(); err != nil {
		t.fail(err)
	}
	if err := t.graceful(); err != nil {
		t.fail(err)
	}
	if len(t.failures) > 0 {
		fmt.Printf("chaos: the server's log ends:\n%s\n", h.log.Tail(8000))
	}
	fmt.Printf("chaos: transport %s: %d cuts between client and server (%d resets, %d orderly, %d up, %d down, %d stalls), %d between server and agent, %d restarts; "+
		"%d of %d cancels late, %d jobs, %d commands, %d bytes compared; %d failures; %.0f s\n",
		transport, t.hop1.Load(), t.kinds[cutReset].Load(), t.kinds[cutClose].Load(), t.kinds[cutUp].Load(), t.kinds[cutDown].Load(), t.kinds[cutStall].Load(),
		t.hop2.Load(), t.restarts.Load(), t.late.Load(), t.cancels.Load(), t.jobs.Load(), t.commands.Load(), t.bytes.Load(), len(t.failures), time.Since(start).Seconds())
	return len(t.failures) == 0
}

// loadAndCut runs the load under cuts, then checks the results and the leftovers.
func loadAndCut(ctx context.Context, o options, h *host, cuts int64, writer string) error {
	if err := h.fill(ctx, o.boxes, writer); err != nil {
		return err
	}
	idle := h.measure()
	p, err := newProxy(h.address, o.seed, h.tally)
	if err != nil {
		return err
	}
	l := &load{h: h, seed: o.seed, tally: h.tally, ran: make(map[string][]string), cut: make(map[string]bool)}
	stop, clients := make(chan struct{}), make([]*sandgate.Client, o.clients)
	for i := range clients {
		if clients[i], err = sandgate.NewClient(ctx, sandgate.WithAddress(p.address())); err != nil {
			return err
		}
		// A client retries only once a server has answered.
		if _, err := clients[i].ServerInfo(ctx); err != nil {
			return err
		}
	}
	p.armed.Store(true)
	var workers sync.WaitGroup
	for i := range o.workers {
		workers.Go(func() { l.work(ctx, clients[i%len(clients)], stop) })
	}
	breaking, calm := context.WithCancelCause(ctx)
	breaker := &breaker{h: h, chance: rand.New(rand.NewPCG(o.seed, 0)), mean: o.breaks}
	workers.Go(func() { breaker.run(breaking) })

	warm, err := cutUntilDone(ctx, o, h, cuts)
	p.armed.Store(false)
	calm(errors.New("enough"))
	close(stop)
	workers.Wait()
	for _, c := range clients {
		_ = c.Close()
	}
	p.close()
	if err != nil {
		return err
	}
	last, errs := h.settled(ctx, idle, warm)
	fmt.Printf("chaos: transport %s: before: %v; warm: %v; at the end: %v\n", h.transport, idle, warm, last)
	return errors.Join(append(append(errs, l.once(ctx)...), h.strayProcesses()...)...)
}

// cutUntilDone returns when enough connections are cut. In the first half it restarts
// the server; from there to two thirds it measures the usage of the warm server.
func cutUntilDone(ctx context.Context, o options, h *host, cuts int64) (warm usage, err error) {
	tick, said := time.NewTicker(200*time.Millisecond), time.Now()
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return warm, fmt.Errorf("after %d cuts: %w", h.tally.cuts(), context.Cause(ctx))
		case <-tick.C:
		}
		done := h.tally.cuts()
		h.tally.mu.Lock()
		failures := len(h.tally.failures)
		h.tally.mu.Unlock()
		switch n := h.tally.restarts.Load(); {
		case failures >= maxFailures:
			return warm, errors.New("too many failures")
		case done >= cuts:
			return warm.least(h.measure()), nil
		case n < o.restarts && done > cuts*(n+1)/(2*o.restarts+2):
			h.kill()
			if err := h.start(ctx); err != nil {
				return warm, err
			}
			h.tally.restarts.Add(1)
		case done > cuts/2 && done < cuts*2/3:
			warm = warm.least(h.measure())
		}
		if time.Since(said) > 15*time.Second {
			said = time.Now()
			fmt.Printf("chaos: transport %s: %d of %d cuts, %d jobs, %d bytes; %v\n", h.transport, done, cuts, h.tally.jobs.Load(), h.tally.bytes.Load(), h.measure())
		}
	}
}
