package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"sync"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	sandgate "github.com/sandgate/sandgate/clients/go"
)

// attack runs until its context ends. It calls begun once it is in effect.
type attack struct {
	name string
	run  func(ctx context.Context, h *host, begun func()) error
	// where says how the attacker's client shares the processors with the server.
	where where
}

// where is beside the server, like any other process, unless stated otherwise.
type where int

const (
	// lowestWeight: it gets the time that nothing else needs, since a client on another
	// machine takes none from the server.
	lowestWeight where = iota + 1
	// unjudged: beside the server, but the client takes so much time itself that the
	// neighbour's latency is about it. It is shown, and not held against the bound.
	unjudged
)

// attacks hold bounded resources, so that they end with this program.
var attacks = []attack{
	{name: "refused calls without a token", run: refusedCalls},
	{name: "half of a message, 500 streams", run: halfMessages},
	{name: "most of a message with a token, 500 streams", run: mostOfMessages},
	{name: "most of an upload's chunk with a token, 384 streams", run: mostOfChunks},
	{name: "silent connections, 1000", run: silentConnections},
	{name: "connections that come back, 1000", run: returningConnections},
	{name: "fork bomb", run: script(`b() { b | b & }; b; sleep 600`)},
	{name: "memory", run: script(`python3 -c 'x = []
while True: x.append(bytearray(1 << 20))'; sleep 600`)},
	{name: "processors", run: script(`for i in 1 2 3 4 5 6 7 8; do while :; do :; done & done; wait`)},
	{name: "disk", run: script(`while :; do dd if=/dev/zero of=/workspace/full bs=1M 2>/dev/null; rm -f /workspace/full; done`)},
	{name: "cgroups", run: script(`i=0; while :; do i=$((i+1)); mkdir /.sandgate/cgroup/x$i 2>/dev/null; done`)},
	{name: "output that is read", run: script(`yes`), where: unjudged},
	{name: "output that is read, client at the lowest weight", run: script(`yes`), where: lowestWeight},
	{name: "output that is not read, 100 streams", run: unreadOutput},
	{name: "file watches, queues, pipes and descriptors", run: script(`python3 -c '
import ctypes, os, time
libc, held = ctypes.CDLL(None), []
try:
    while True: held.append(os.pipe())
except OSError: pass
while libc.inotify_init() >= 0: pass
time.sleep(600)'; sleep 600`)},
	{name: "connections to itself", run: script(`python3 -c '
import socket, time
l = socket.socket(); l.bind(("127.0.0.1", 0)); l.listen(500); held = []
try:
    for i in range(400):
        s = socket.create_connection(l.getsockname()); s.setblocking(False); held.append((s, l.accept()))
        try:
            while True: s.send(bytes(65536))
        except OSError: pass
except OSError: pass
time.sleep(600)'; sleep 600`)},
	{name: "10 creations at once", run: creations},
}

// script runs a command in a sandbox of tenant a and restarts it when it ends.
func script(text string) func(context.Context, *host, func()) error {
	return func(ctx context.Context, h *host, begun func()) error {
		box, err := h.sandbox(ctx, "a")
		if err != nil {
			return err
		}
		defer func() { _ = box.Delete(context.WithoutCancel(ctx)) }()
		once := sync.OnceFunc(begun)
		for ctx.Err() == nil {
			process, err := box.Start(ctx, sandgate.ExecuteRequest{Shell: text})
			if err != nil {
				return err
			}
			once() // Start returns once the command runs
			for _, err := range process.Events() {
				if err != nil {
					return err
				}
			}
		}
		return ctx.Err()
	}
}

// unreadOutput runs commands with more output than fits between them and their callers,
// who read none of it.
func unreadOutput(ctx context.Context, h *host, begun func()) error {
	const streams, sandboxes = 100, 8 // the window of a sandbox's connection holds 16 streams
	var held []*sandgate.Process
	defer func() {
		for _, process := range held {
			process.Close()
		}
	}()
	for range sandboxes {
		box, err := h.sandbox(ctx, "a")
		if err != nil {
			return err
		}
		defer func() { _ = box.Delete(context.WithoutCancel(ctx)) }()
		for range (streams + sandboxes - 1) / sandboxes {
			client, err := h.client(ctx, "a") // a connection, and so a window, of its own
			if err != nil {
				return err
			}
			process, err := client.Sandbox(box.ID()).Start(ctx, sandgate.ExecuteRequest{Shell: "head -c 4194304 /dev/zero; sleep 600"})
			if err != nil {
				return err
			}
			held = append(held, process)
		}
	}
	begun()
	<-ctx.Done()
	return ctx.Err()
}

// refusedCalls makes calls with a wrong token from 16 connections.
func refusedCalls(ctx context.Context, h *host, begun func()) error {
	var work sync.WaitGroup
	for range 16 {
		client, err := sandgate.NewClient(ctx, sandgate.WithAddress(h.server.Address), sandgate.WithToken("wrong"))
		if err != nil {
			return err
		}
		work.Go(func() {
			defer func() { _ = client.Close() }()
			for ctx.Err() == nil {
				_, _ = client.Get(ctx, "x")
			}
		})
	}
	begun()
	work.Wait()
	return ctx.Err()
}

// halfMessages announces 16 MiB in each of many streams and sends almost nothing.
func halfMessages(ctx context.Context, h *host, begun func()) error {
	var conns []net.Conn
	defer func() {
		for _, conn := range conns {
			_ = conn.Close()
		}
	}()
	for range 5 {
		conn, err := net.Dial("tcp", h.server.Address)
		if err != nil {
			return err
		}
		conns = append(conns, conn)
		if _, err := conn.Write([]byte(http2.ClientPreface)); err != nil {
			return err
		}
		framer := http2.NewFramer(conn, conn)
		if err := framer.WriteSettings(); err != nil {
			return err
		}
		for i := range uint32(100) {
			var block bytes.Buffer
			encoder := hpack.NewEncoder(&block)
			for _, f := range [][2]string{
				{":method", "POST"}, {":scheme", "http"}, {":authority", "x"}, {":path", "/sandbox.v1.SandboxService/WriteFile"},
				{"content-type", "application/grpc"}, {"te", "trailers"},
			} {
				_ = encoder.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
			}
			id := 2*i + 1
			// The server has closed the connection: it defends itself.
			if framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block.Bytes(), EndHeaders: true}) != nil ||
				framer.WriteData(id, false, []byte{0, 1, 0, 0, 0, 1}) != nil {
				break
			}
		}
	}
	begun()
	<-ctx.Done()
	return ctx.Err()
}

// silentConnections opens connections and sends nothing.
func silentConnections(ctx context.Context, h *host, begun func()) error {
	conns := make(chan net.Conn, 1000)
	defer func() {
		close(conns)
		for conn := range conns {
			_ = conn.Close()
		}
	}()
	for range cap(conns) {
		conn, err := net.Dial("tcp", h.server.Address)
		if err != nil {
			return fmt.Errorf("connect: %w", err)
		}
		conns <- conn
	}
	begun()
	<-ctx.Done()
	return ctx.Err()
}

// returningConnections opens connections, sends nothing, and reconnects at once when the
// server closes one.
func returningConnections(ctx context.Context, h *host, begun func()) error {
	const conns = 1000
	var open, work sync.WaitGroup
	open.Add(conns)
	for range conns {
		first := sync.OnceFunc(open.Done)
		work.Go(func() {
			defer first()
			for ctx.Err() == nil {
				conn, err := net.Dial("tcp", h.server.Address)
				if err != nil {
					return // its ports are used up
				}
				first()
				closeAtEnd := context.AfterFunc(ctx, func() { _ = conn.Close() })
				_, _ = io.Copy(io.Discard, conn)
				closeAtEnd()
				_ = conn.Close()
			}
		})
	}
	open.Wait()
	begun()
	work.Wait()
	return ctx.Err()
}

// creations creates and deletes sandboxes, ten at a time.
func creations(ctx context.Context, h *host, begun func()) error {
	client, err := h.client(ctx, "a")
	if err != nil {
		return err
	}
	var work sync.WaitGroup
	for range 10 {
		work.Go(func() {
			for ctx.Err() == nil {
				if box, _, err := client.Create(ctx, sandgate.CreateRequest{}); err == nil {
					_ = box.Delete(context.WithoutCancel(ctx))
				}
			}
		})
	}
	begun()
	work.Wait()
	return ctx.Err()
}
