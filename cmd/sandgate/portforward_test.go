//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	sandgate "github.com/sandgate/sandgate/clients/go"
	"github.com/sandgate/sandgate/server"
	"github.com/sandgate/sandgate/test/daemon"
	"github.com/sandgate/sandgate/test/testserver"
)

// serveFake serves the sandbox "a", whose agent shares this machine's network, and
// returns the server's address.
func serveFake(t *testing.T) string {
	t.Helper()
	machine, dir := testserver.Machine(t)
	address, _ := testserver.Serve(t, dir, server.Config{Provider: machine.Open(), Logger: slog.New(slog.DiscardHandler)})
	client, err := sandgate.NewClient(t.Context(), sandgate.WithAddress(address))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, _, err := client.Create(t.Context(), sandgate.CreateRequest{ID: "a"}); err != nil {
		t.Fatal(err)
	}
	return address
}

func TestPortForward(t *testing.T) {
	address := serveFake(t)
	echo, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer echo.Close()
	go func() {
		for {
			conn, err := echo.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(conn, conn)
				_ = conn.Close()
			}()
		}
	}()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = closed.Close()
	portOf := func(l net.Listener) int { return l.Addr().(*net.TCPAddr).Port }

	ctx, interrupt := context.WithCancelCause(t.Context())
	out, in := io.Pipe()
	var stderr daemon.Log
	c := &cli{stdin: strings.NewReader(""), stdout: in, stderr: &stderr}
	code := make(chan int, 1)
	go func() {
		code <- c.run(ctx, []string{"--address", address, "--output", "json", "port-forward", "a",
			fmt.Sprintf("0:%d", portOf(echo)), fmt.Sprintf(":%d", portOf(closed))})
	}()
	lines := json.NewDecoder(bufio.NewReader(out))
	var to [2]struct {
		LocalAddress string `json:"local_address"`
		SandboxID    string `json:"sandbox_id"`
		Port         int
	}
	for i, want := range []net.Listener{echo, closed} {
		if err := lines.Decode(&to[i]); err != nil || to[i].SandboxID != "a" || to[i].Port != portOf(want) {
			t.Fatalf("%+v, %v", to[i], err)
		}
	}

	// A connection that fails ends alone, and the local program reads a reset: of the
	// connection, or of the connect itself, if the reset is faster than the dialer.
	failed, err := net.Dial("tcp", to[1].LocalAddress)
	if err == nil {
		defer failed.Close()
		_ = failed.SetDeadline(time.Now().Add(30 * time.Second))
		_, err = io.ReadAll(failed)
	}
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a closed port: %v", err)
	}
	content := bytes.Repeat([]byte("sandgate"), 100_000)
	conn := dialTCP(t, to[0].LocalAddress)
	go func() {
		_, _ = conn.Write(content)
		_ = conn.CloseWrite()
	}()
	if got, err := io.ReadAll(conn); err != nil || !bytes.Equal(got, content) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if got := stderr.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "PORT_CLOSED") {
		t.Errorf("it printed %q", got)
	}

	// An interrupt ends it cleanly, with the connections that are open.
	conn = dialTCP(t, to[0].LocalAddress)
	if _, err := conn.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	interrupt(signalled{syscall.SIGINT})
	if got := <-code; got != 0 {
		t.Errorf("exit code %d, %s", got, stderr.String())
	}
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("after the interrupt: %v", err)
	}
	if got := stderr.String(); strings.Count(got, "\n") != 1 {
		t.Errorf("it printed %q", got)
	}
}

func dialTCP(t *testing.T, address string) *net.TCPConn {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return conn.(*net.TCPConn)
}

func TestPortForwardFailures(t *testing.T) {
	address := serveFake(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for want, args := range map[string][]string{
		"SANDBOX_NOT_FOUND":      {"b", "80"},
		"address already in use": {"a", fmt.Sprint(taken.Addr().(*net.TCPAddr).Port)},
		"[LOCAL:]PORT":           {"a", "80:0"},
		"no-port":                {"--bind", "127.0.0.1:no-port", "a", "0:80"},
	} {
		var stdout, stderr bytes.Buffer
		c := &cli{stdin: strings.NewReader(""), stdout: &stdout, stderr: &stderr}
		code := c.run(t.Context(), append([]string{"--address", address, "port-forward"}, args...))
		if code != failed || stdout.String() != "" || strings.Count(stderr.String(), "\n") != 1 ||
			!strings.Contains(stderr.String(), want) {
			t.Errorf("%v: %d, %q, %q", args, code, stdout.String(), stderr.String())
		}
	}
}

func TestParsePorts(t *testing.T) {
	for text, want := range map[string]portPair{
		"80": {80, 80}, "8080:80": {8080, 80}, "0:80": {0, 80}, ":80": {0, 80}, "65535:65535": {65535, 65535},
	} {
		if got, err := parsePorts(text); err != nil || got != want {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", ":", "0", "80:0", "80:", "65536", "65536:1", "-1", "+1", "1:2:3", "a", "127.0.0.1:80:80", " 1"} {
		if got, err := parsePorts(text); err == nil {
			t.Errorf("%q: %v", text, got)
		}
	}
}

func FuzzParsePorts(f *testing.F) {
	for _, seed := range []string{"80", "8080:80", ":1", "::1", "1:2:3"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		pair, err := parsePorts(text)
		if err != nil {
			return
		}
		if again, err := parsePorts(fmt.Sprintf("%d:%d", pair.local, pair.remote)); err != nil || again != pair || pair.remote == 0 {
			t.Errorf("%q is %v, and that is %v, %v", text, pair, again, err)
		}
	})
}
