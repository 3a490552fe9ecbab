// Command goprogram does what ordinary Go programs do: it runs goroutines on
// several threads, starts processes, uses timers and the loopback interface. It
// prints "ok", or what failed and exits with 1. With the argument "serve" or "listen" it
// listens for connections from outside, with others it makes the connections that they
// name.
// The conformance suite uploads a static build of it (CGO_ENABLED=0) and runs it in a
// sandbox.
package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

func main() {
	if run := servers()[strings.Join(os.Args[1:], " ")]; run != nil {
		if err := run(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if len(os.Args) > 1 {
		attempts(os.Args[1:])
		return
	}
	if err := errors.Join(threads(), children(), timers(), loopback()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	_, _ = fmt.Fprintln(os.Stdout, "ok")
}

// servers are what the program does until it is killed, by its argument.
func servers() map[string]func() error {
	return map[string]func() error{"serve": serve, "listen": listen}
}

// threads keeps as many operating system threads at once as goroutines.
func threads() error {
	const count = 20
	var sum atomic.Int64
	var work, all sync.WaitGroup
	all.Add(count)
	for i := range count {
		work.Go(func() {
			runtime.LockOSThread() // The thread ends with the goroutine.
			all.Done()
			all.Wait()
			sum.Add(int64(i))
		})
	}
	work.Wait()
	if sum.Load() != count*(count-1)/2 {
		return fmt.Errorf("%d threads added up to %d", count, sum.Load())
	}
	return nil
}

func children() error {
	const count = 20
	errs := make([]error, count)
	var work sync.WaitGroup
	for i := range count {
		work.Go(func() {
			cmd := exec.Command("/bin/sh", "-c", "read line; echo got $line")
			cmd.Stdin = strings.NewReader(fmt.Sprintf("%d\n", i))
			out, err := cmd.Output()
			if err == nil && string(out) != fmt.Sprintf("got %d\n", i) {
				err = fmt.Errorf("child %d wrote %q", i, out)
			}
			errs[i] = err
		})
	}
	work.Wait()
	return errors.Join(errs...)
}

func timers() error {
	const pause = 20 * time.Millisecond
	start := time.Now()
	for range 5 {
		<-time.After(pause)
	}
	if took := time.Since(start); took < 5*pause {
		return fmt.Errorf("5 timers of %v took %v", pause, took)
	}
	return nil
}

func loopback() error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }()
	served := make(chan error, 1)
	go func() {
		conn, err := l.Accept()
		if err == nil {
			_, err = io.Copy(conn, conn)
			err = errors.Join(err, conn.Close())
		}
		served <- err
	}()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		return err
	}
	const text = "over the loopback interface"
	if _, err := io.WriteString(conn, text); err != nil {
		return err
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		return err
	}
	got, err := io.ReadAll(conn)
	if err == nil && string(got) != text {
		err = fmt.Errorf("%q came back", got)
	}
	return errors.Join(err, <-served)
}
