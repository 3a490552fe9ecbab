package main

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync/atomic"
	"syscall"
)

// services are what the program does with a connection, by name. Each listens on a port
// of its own.
var services = []struct {
	name, host string
	serve      func(*net.TCPConn)
}{
	{"echo", "127.0.0.1", echo},
	{"echo6", "::1", echo},
	{"ends-first", "127.0.0.1", endsFirst},
	{"reads-nothing", "127.0.0.1", readsNothing},
	{"writes-endlessly", "127.0.0.1", writesEndlessly},
	{"resets", "127.0.0.1", resets},
	{"watches", "127.0.0.1", watches},
}

// serve prints "NAME ADDRESS" for each service and then "ready PID". It serves until it is
// killed. A machine without IPv6 has no echo6.
func serve() error {
	for _, s := range services {
		l, err := net.Listen("tcp", net.JoinHostPort(s.host, "0"))
		if errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.EAFNOSUPPORT) {
			continue
		}
		if err != nil {
			return err
		}
		report(s.name, l.Addr())
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				go func() {
					defer func() { _ = conn.Close() }()
					s.serve(conn.(*net.TCPConn))
				}()
			}
		}()
	}
	report("ready", os.Getpid())
	select {}
}

func report(words ...any) { _, _ = fmt.Fprintln(os.Stdout, words...) }

func echo(conn *net.TCPConn) {
	_, _ = io.Copy(conn, conn)
	_ = conn.CloseWrite()
}

// endsFirst ends its direction and then reports what it reads.
func endsFirst(conn *net.TCPConn) {
	_, _ = io.WriteString(conn, "bye")
	_ = conn.CloseWrite()
	sum := sha256.New()
	n, err := io.Copy(sum, conn)
	report("ends-first", n, fmt.Sprintf("%x", sum.Sum(nil)), err)
}

// stuck counts the connections of readsNothing.
var stuck atomic.Int64

func readsNothing(*net.TCPConn) {
	report("reads-nothing", stuck.Add(1))
	select {}
}

func writesEndlessly(conn *net.TCPConn) {
	block := make([]byte, 64<<10)
	total := 0
	for {
		n, err := conn.Write(block)
		total += n
		if err != nil {
			report("writes-endlessly", total)
			return
		}
	}
}

// resets reads one byte and resets the connection.
func resets(conn *net.TCPConn) {
	_, _ = conn.Read(make([]byte, 1))
	_ = conn.SetLinger(0)
}

// watches reports how the connection ends.
func watches(conn *net.TCPConn) {
	n, err := io.Copy(io.Discard, conn)
	how := "eof"
	if err != nil {
		how = "reset"
	}
	report("watches", n, how)
}
