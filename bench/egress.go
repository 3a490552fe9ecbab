package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/sandgate/sandgate/bench/report"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

const (
	// connectCommand makes this program the one that connects in the egress rows.
	connectCommand = "connect"
	// sandboxProxy is where a sandbox's proxy is.
	sandboxProxy = "127.0.0.1:3128"
	// direct is connectCommand's argument for no proxy.
	direct = "direct"
)

// connect makes COUNT connections to a listener's port, one after the other, through a
// proxy or directly, and prints the nanoseconds of each. Without a SIZE a connection
// sends nothing to a sink and reads its answer; otherwise it reads SIZE bytes from a
// source.
func connect(args []string) error {
	if len(args) != 4 {
		return errors.New("usage: connect PROXY|direct ADDRESS COUNT SIZE")
	}
	size, err := strconv.ParseInt(args[3], 10, 64)
	if err != nil {
		return err
	}
	return printTimes(args[2], func() error { return connectOnce(args[0], args[1], size) })
}

// printTimes calls once as often as times says, and prints the nanoseconds of each call.
func printTimes(times string, once func() error) error {
	count, err := strconv.Atoi(times)
	if err != nil {
		return err
	}
	// Printed at the end: a command's output takes agent and server, which the next
	// connection would share with it.
	var took strings.Builder
	for range count {
		start := time.Now()
		if err := once(); err != nil {
			return err
		}
		fmt.Fprintln(&took, time.Since(start).Nanoseconds())
	}
	_, err = io.WriteString(os.Stdout, took.String())
	return err
}

func connectOnce(proxy, address string, size int64) error {
	at := address
	if proxy != direct {
		at = proxy
	}
	conn, err := net.Dial("tcp", at)
	if err != nil {
		return err
	}
	defer conn.Close()
	in := bufio.NewReader(conn)
	if proxy != direct {
		if err := tunnel(conn, in, address); err != nil {
			return err
		}
	}
	if size > 0 {
		// In pieces of gRPC's read buffer, which the yardstick's client has: those of
		// io.Discard are a quarter of it.
		buf := make([]byte, 32<<10)
		for err == nil && size > 0 {
			var n int
			n, err = in.Read(buf[:min(size, int64(len(buf)))])
			size -= int64(n)
		}
		return err
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		return err
	}
	answer, err := io.ReadAll(in)
	if err == nil && string(answer) != "0" {
		err = fmt.Errorf("the listener answered %q", answer)
	}
	return err
}

// tunnel asks a proxy for a connection.
func tunnel(conn io.Writer, in *bufio.Reader, address string) error {
	if _, err := fmt.Fprintf(conn, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", address, address); err != nil {
		return err
	}
	status, err := in.ReadString('\n')
	if err != nil {
		return err
	}
	if !strings.Contains(status, " 200 ") {
		return fmt.Errorf("the proxy answered %q", strings.TrimSpace(status))
	}
	for line := status; line != "\r\n"; {
		if line, err = in.ReadString('\n'); err != nil {
			return err
		}
	}
	return nil
}

// scanTimes reads what connect has printed.
func scanTimes(text string) (times report.Samples, err error) {
	for field := range strings.FieldsSeq(text) {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("connect wrote %q: %w", field, err)
		}
		times = append(times, time.Duration(n))
	}
	return times, nil
}

// connectHere runs connect on this machine, without a proxy.
func connectHere(ctx context.Context, address string, count int) (report.Samples, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, connectCommand, direct, address, strconv.Itoa(count), "0")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, err
	}
	return scanTimes(string(out))
}

// connectInside runs connect in a sandbox, through the sandbox's proxy.
func (b *bench) connectInside(ctx context.Context, sandbox, address string, count int, size int64) (report.Samples, error) {
	return b.timesInside(ctx, sandbox, connectCommand, sandboxProxy, address, strconv.Itoa(count), strconv.FormatInt(size, 10))
}

// timesInside runs this program in a sandbox and reads the times that it prints.
func (b *bench) timesInside(ctx context.Context, sandbox string, args ...string) (report.Samples, error) {
	var out strings.Builder
	err := stream(ctx, b, sandbox, func(data []byte) { out.Write(data) }, append([]string{listenerPath}, args...)...)
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, strings.TrimSpace(out.String()))
	}
	return scanTimes(out.String())
}

// proxied restarts the server with a template whose sandboxes may connect to the ports
// of a listener on this machine, and creates sandboxes of it.
func (b *bench) proxied(ctx context.Context, to ports, sandboxes ...string) (remove func(), err error) {
	config := fmt.Sprintf("templates:\n- name: default\n  network: proxy\n  egress:\n  - cidrs: [127.0.0.1/32]\n    ports: [%d, %d]\n", to.source, to.sink)
	return b.configured(ctx, config, sandboxes...)
}

// configured restarts the server with a configuration and creates sandboxes that have this
// program. remove deletes them and restarts the server without the configuration.
func (b *bench) configured(ctx context.Context, config string, sandboxes ...string) (remove func(), err error) {
	if err := b.serveConfig(ctx, config); err != nil {
		return nil, err
	}
	var removals []func()
	remove = func() {
		for _, one := range removals {
			one()
		}
		if err := b.serve(ctx); err != nil {
			slog.Warn("the server does not start again", "error", err)
		}
	}
	defer func() {
		if err != nil {
			remove()
		}
	}()
	for _, id := range sandboxes {
		one, err := b.sandbox(ctx, id)
		if err != nil {
			return nil, err
		}
		removals = append(removals, one)
		if err := b.uploadSelf(ctx, id); err != nil {
			return nil, err
		}
	}
	return remove, nil
}

// egressRequests compares new connections through a sandbox's proxy, each with one
// round trip, with the same program's on this machine to the same listener.
func egressRequests(ctx context.Context, b *bench) ([]report.Figure, error) {
	here, stop, err := listenHere()
	if err != nil {
		return nil, err
	}
	defer stop()
	remove, err := b.proxied(ctx, here, "bench-egress")
	if err != nil {
		return nil, err
	}
	defer remove()
	address := fmt.Sprintf("127.0.0.1:%d", here.sink)
	var ours, theirs report.Samples
	for round := range rounds + 1 {
		inside, err := b.connectInside(ctx, "bench-egress", address, b.count(200), 0)
		if err != nil {
			return nil, err
		}
		outside, err := connectHere(ctx, address, b.count(200))
		if err != nil {
			return nil, err
		}
		if round > 0 { // the first is for warming up
			ours, theirs = append(ours, inside...), append(theirs, outside...)
		}
	}
	return []report.Figure{
		added("egress, new connection and round trip, p50 | direct", ours, theirs, 0.5, report.UpTo(1, "ms"), report.UpTo(0.4, "ms")),
		added("egress, new connection and round trip, p99 | direct", ours, theirs, 0.99, report.Bound{}, report.Bound{}),
	}, nil
}

// added compares two sets of samples by the milliseconds that the first takes longer.
func added(what string, ours, theirs report.Samples, q float64, must, goal report.Bound) report.Figure {
	f := report.Latency(what+", added", ours, theirs, q, must, goal)
	f.Ratio = float64(ours.Quantile(q)-theirs.Quantile(q)) / float64(time.Millisecond)
	return f
}

// egressThroughput compares bulk to a program behind a sandbox's proxy with a one-hop
// grpc-go stream from the same listener.
func egressThroughput(ctx context.Context, b *bench) ([]report.Figure, error) {
	here, stop, err := listenHere()
	if err != nil {
		return nil, err
	}
	defer stop()
	remove, err := b.proxied(ctx, here, "bench-egress")
	if err != nil {
		return nil, err
	}
	defer remove()
	size := b.size(1 << 30)
	return compare(ctx, b, "egress bulk | one hop", size, report.AtLeast(0.5), report.AtLeast(0.8), func(c sandboxv1.SandboxServiceClient) error {
		if c != b.client {
			return forwardFrom(ctx, c, "bench-egress", here.source, size)
		}
		_, err := b.connectInside(ctx, "bench-egress", fmt.Sprintf("127.0.0.1:%d", here.source), 1, size)
		return err
	})
}

// executeBesideEgress compares commands of a sandbox with bulk through its proxy with
// commands of another sandbox on the same machine.
func executeBesideEgress(ctx context.Context, b *bench) ([]report.Figure, error) {
	here, stop, err := listenHere()
	if err != nil {
		return nil, err
	}
	defer stop()
	remove, err := b.proxied(ctx, here, "bench-bulk", "bench-quiet")
	if err != nil {
		return nil, err
	}
	defer remove()
	times, err := b.commandsBeside(ctx, func(ctx context.Context) error {
		_, err := b.connectInside(ctx, "bench-bulk", fmt.Sprintf("127.0.0.1:%d", here.source), 1, math.MaxInt64)
		return err
	})
	if err != nil {
		return nil, err
	}
	return []report.Figure{report.Latency("Execute p99 beside egress bulk | of another sandbox",
		times[0], times[1], 0.99, report.AtMost(2), report.AtMost(1.5))}, nil
}
