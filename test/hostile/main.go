// Command hostile measures what a tenant or an unauthenticated caller can do to
// others. It runs a server with two tenants, lets one of them, or a caller without a
// token, exhaust a resource, and prints the latency of the other tenant's commands
// and the memory of the server. Quiet time and attack alternate, so that both see
// the same load from the rest of the machine.
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
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	sandgate "github.com/sandgate/sandgate/clients/go"
	"github.com/sandgate/sandgate/test/daemon"
)

type options struct {
	server  string
	calls   int
	turns   int
	slower  float64
	memory  int64
	attacks string
	cgroup  string
}

// figures describe the neighbour's commands, in quiet time or during an attack.
type figures struct {
	took   []time.Duration
	failed int
	memory int64 // largest resident size of the server, in bytes
}

// quantile returns the latency that a share of the commands did not exceed.
func (f figures) quantile(share float64) time.Duration {
	took := slices.Sorted(slices.Values(f.took))
	return took[int(share*float64(len(took)-1))]
}

func main() {
	if len(os.Args) == 4 && os.Args[1] == "attack" {
		if err := runAttack(os.Args[2], os.Args[3]); err != nil {
			fmt.Fprintf(os.Stderr, "hostile: %s: %v\n", os.Args[2], err)
			os.Exit(1)
		}
		return
	}
	var o options
	flag.StringVar(&o.server, "server", "bin/sandgate", "the server program")
	flag.IntVar(&o.calls, "calls", 400, "commands of the neighbour for each figure; a p99 of fewer is close to their maximum")
	flag.IntVar(&o.turns, "turns", 4, "turns of quiet time and attack over which the commands are spread")
	flag.Float64Var(&o.slower, "slower", 3, "how much slower the neighbour's p99 may be")
	flag.Int64Var(&o.memory, "memory", 256<<20, "bytes that the server may hold")
	flag.StringVar(&o.attacks, "attacks", "", "only attacks whose name contains this")
	flag.StringVar(&o.cgroup, "cgroup", "/sandgate-hostile", "parent cgroup of the sandboxes")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
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
	s, err := start(ctx, o.server, o.cgroup)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	neighbour, err := s.sandbox(ctx, "b")
	if err != nil {
		return false, err
	}
	out := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(out, "attack\tneighbour's p50: quiet\tattack\tp99: quiet\tattack\tof quiet\tfailed\tserver's memory\t")
	ok = true
	for _, a := range attacks {
		if !strings.Contains(a.name, o.attacks) {
			continue
		}
		var quiet, under figures
		for range o.turns {
			calls := (o.calls + o.turns - 1) / o.turns
			if err := s.measure(ctx, &quiet, neighbour, calls); err != nil {
				return false, err
			}
			if err := s.under(ctx, a, &under, neighbour, calls); err != nil {
				return false, fmt.Errorf("%s: %w", a.name, err)
			}
		}
		slower := float64(under.quantile(0.99)) / float64(quiet.quantile(0.99))
		failed, memory := quiet.failed+under.failed, max(quiet.memory, under.memory)
		verdict := "held"
		switch {
		case memory > o.memory || failed > 0 || slower > o.slower && a.where != unjudged:
			verdict, ok = "MISSED", false
		case slower > o.slower:
			verdict = "not judged: the client takes the server's processors"
		}
		_, _ = fmt.Fprintf(out, "%s\t%.1f ms\t%.1f ms\t%.1f ms\t%.1f ms\t%.1f x\t%d\t%d MiB\t%s\n",
			a.name, ms(quiet.quantile(0.5)), ms(under.quantile(0.5)), ms(quiet.quantile(0.99)), ms(under.quantile(0.99)),
			slower, failed, memory>>20, verdict)
	}
	return ok, out.Flush()
}

// lowest is the nice value with the lowest weight: 15, where that of 0 is 1024.
const lowest = 19

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// under measures the neighbour during an attack. The attack is a process in a
// session of its own: if it shared the neighbour's client, or the scheduling group of
// its session, the figures would be about them.
func (s *host) under(ctx context.Context, a attack, f *figures, neighbour *sandgate.Sandbox, calls int) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	argv := []string{program, "attack", a.name, s.server.Address}
	if a.where == lowestWeight {
		argv = append([]string{"nice", "-n", strconv.Itoa(lowest)}, argv...)
	}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), "SANDGATE_TOKEN="+s.tokens["a"])
	cmd.Stderr, cmd.SysProcAttr = os.Stderr, &syscall.SysProcAttr{Setsid: true}
	end, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	begun, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	if a.where == lowestWeight {
		// The nice value counts within the session's scheduling group, if the kernel makes
		// such groups.
		group := filepath.Join("/proc", strconv.Itoa(cmd.Process.Pid), "autogroup")
		if err := os.WriteFile(group, []byte(strconv.Itoa(lowest)), 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return errors.Join(err, cmd.Process.Kill(), cmd.Wait())
		}
	}
	var once [1]byte
	if _, err := io.ReadFull(begun, once[:]); err != nil {
		return fmt.Errorf("it ended before it had begun: %w", cmd.Wait())
	}
	err = s.measure(ctx, f, neighbour, calls)
	_ = end.Close()
	return errors.Join(err, cmd.Wait())
}

// runAttack is the process of an attack, which ends with its standard input.
func runAttack(name, address string) error {
	ctx, cancel := context.WithCancelCause(context.Background())
	ended := errors.New("the measurement has ended")
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel(ended)
	}()
	h := &host{server: &daemon.Daemon{Address: address}, tokens: map[string]string{"a": os.Getenv("SANDGATE_TOKEN")}}
	for _, a := range attacks {
		if a.name == name {
			err := a.run(ctx, h, func() { _, _ = os.Stdout.WriteString("\n") })
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("it ended early: %w", err)
		}
	}
	return fmt.Errorf("there is no attack %q", name)
}

// measure runs commands in the neighbour's sandbox, one after the other.
func (s *host) measure(ctx context.Context, f *figures, box *sandgate.Sandbox, calls int) error {
	for range calls {
		begin := time.Now()
		result, err := box.Execute(ctx, sandgate.ExecuteRequest{Argv: []string{"true"}})
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil || result.Exit.GetExitCode() != 0 {
			f.failed++
		}
		f.took = append(f.took, time.Since(begin))
		memory, err := s.server.Memory("VmRSS")
		if err != nil {
			return err
		}
		f.memory = max(f.memory, memory)
	}
	return nil
}
