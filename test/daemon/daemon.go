// Package daemon runs "sandgate serve" as a process, for tests and measurements.
package daemon

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// startTimeout bounds the time until a server accepts connections.
const startTimeout = 2 * time.Minute

// Options describe a server to start. The zero value is a server on a loopback port
// with the defaults of "sandgate serve".
type Options struct {
	// Program is the executable. Default: Program().
	Program string
	// Listen is the address to listen on. Default: a free port of loopback.
	Listen string
	// Args are further arguments of "sandgate serve".
	Args []string
	// Log receives the server's standard error; several servers can share one.
	// Default: a new one.
	Log *Log
	// Env holds variables of the process beside those of this one.
	Env []string
	// Attr holds attributes of the process.
	Attr *syscall.SysProcAttr
}

// Daemon is a running server.
type Daemon struct {
	// Address is the address that the server listens on, for clients.
	Address string
	// Process is the server's process.
	Process *os.Process
	// Took is the time from the start until the server accepted connections.
	Took time.Duration
	// Log holds the server's standard error.
	Log *Log

	ended chan struct{}
	err   error // valid once ended is closed
}

// Program returns the path of the program under test: $SANDGATE_BIN, or else
// bin/sandgate in the module that holds the working directory.
func Program() string {
	if path := os.Getenv("SANDGATE_BIN"); path != "" {
		return path
	}
	const program = "bin/sandgate"
	dir, err := os.Getwd()
	if err != nil {
		return program
	}
	for ; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return filepath.Join(dir, program)
		}
	}
	return program
}

// FreeAddress returns a loopback address that was free a moment ago, for a server that
// is restarted. Its port is below the ephemeral ports, so that no client's connection
// takes it meanwhile.
func FreeAddress() (string, error) {
	for range 1000 {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 10_000+rand.IntN(20_000)))
		if err != nil {
			continue
		}
		return l.Addr().String(), l.Close()
	}
	return "", errors.New("no port from 10000 to 29999 is free")
}

// Start starts a server and returns when it accepts connections. The caller must
// call Stop or Kill; ctx bounds only the start.
func Start(ctx context.Context, o Options) (*Daemon, error) {
	if o.Program == "" {
		o.Program = Program()
	}
	if o.Listen == "" {
		o.Listen = "127.0.0.1:0"
	}
	if o.Log == nil {
		o.Log = new(Log)
	}
	// An os.Pipe and not StderrPipe: Wait must not close it before the log is read.
	reader, writer, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(o.Program, append([]string{"serve", "--listen", o.Listen}, o.Args...)...)
	cmd.Stderr, cmd.SysProcAttr = writer, o.Attr
	cmd.Env = append(os.Environ(), o.Env...)
	began := time.Now()
	err = cmd.Start()
	writer.Close()
	if err != nil {
		reader.Close()
		return nil, fmt.Errorf("start %s (make build makes it): %w", o.Program, err)
	}
	d := &Daemon{Process: cmd.Process, Log: o.Log, ended: make(chan struct{})}
	addresses := make(chan string, 1)
	logged := make(chan struct{})
	go func() {
		defer close(logged)
		d.read(reader, addresses)
	}()
	go func() {
		defer close(d.ended)
		defer reader.Close()
		d.err = cmd.Wait()
		select {
		case <-logged:
		case <-time.After(time.Second): // a process that the server left holds the pipe
		}
	}()
	limit := time.NewTimer(startTimeout)
	defer limit.Stop()
	select {
	case d.Address = <-addresses:
		d.Took = time.Since(began)
		return d, nil
	case <-d.ended:
		err = errors.New("the server ended")
	case <-limit.C:
		err = fmt.Errorf("the server did not start within %v", startTimeout)
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	d.Kill()
	return nil, d.Explain(err)
}

// read copies the server's standard error to the log and sends the address that it
// announces.
func (d *Daemon) read(from io.Reader, addresses chan<- string) {
	lines := bufio.NewReader(io.TeeReader(from, d.Log))
	for {
		line, err := lines.ReadString('\n')
		if address := announced(line); address != "" {
			addresses <- address
			break
		}
		if err != nil {
			return
		}
	}
	_, _ = io.Copy(io.Discard, lines)
}

// announced returns the address in the line that a server prints when it accepts
// connections, as text or as JSON.
func announced(line string) string {
	if _, rest, ok := strings.Cut(line, " serves at "); ok {
		address, _, _ := strings.Cut(rest, ",")
		return address
	}
	var record struct{ Msg, Address string }
	if json.Unmarshal([]byte(line), &record) == nil && record.Msg == "serving" {
		return record.Address
	}
	return ""
}

// Stop ends the server with SIGTERM and returns the error that it ended with. Its
// sandboxes remain.
func (d *Daemon) Stop() error {
	_ = d.Process.Signal(syscall.SIGTERM)
	late := time.AfterFunc(startTimeout, func() { _ = d.Process.Kill() })
	defer late.Stop()
	<-d.ended
	return d.err
}

// Kill ends the server with SIGKILL.
func (d *Daemon) Kill() {
	_ = d.Process.Kill()
	<-d.ended
}

// Explain adds the server's log to an error.
func (d *Daemon) Explain(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w\n%s", err, d.Log.Tail(8000))
}

// Memory returns a field of the process's /proc status, such as VmRSS, in bytes.
func (d *Daemon) Memory(field string) (int64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.Process.Pid))
	if err != nil {
		return 0, err
	}
	var kib int64
	for line := range strings.Lines(string(status)) {
		if _, err := fmt.Sscanf(line, field+": %d kB", &kib); err == nil {
			return kib << 10, nil
		}
	}
	return 0, fmt.Errorf("the server's status has no %s", field)
}

// Log keeps what is written to it. It is safe for concurrent use.
type Log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// String returns the whole log.
func (l *Log) String() string { return l.Tail(1 << 40) }

// Tail returns the last n bytes.
func (l *Log) Tail(n int) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	text := l.text.Bytes()
	return string(text[max(0, len(text)-n):])
}

// Tokens creates a token for each tenant, writes the tokens file to path and returns
// the tokens by tenant.
func Tokens(ctx context.Context, program, path string, tenants ...string) (map[string]string, error) {
	tokens, file := make(map[string]string), "tokens:\n"
	for _, tenant := range tenants {
		var entry bytes.Buffer
		cmd := exec.CommandContext(ctx, program, "token", "new", "--name", tenant)
		cmd.Stderr = &entry
		token, err := cmd.Output()
		_, line, ok := strings.Cut(entry.String(), "\n") // after the line that says where it belongs
		if err != nil || !ok {
			return nil, fmt.Errorf("sandgate token new: %w: %s", err, entry.String())
		}
		tokens[tenant] = strings.TrimSpace(string(token))
		file += line
	}
	return tokens, os.WriteFile(path, []byte(file), 0o600)
}
