package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	sandgate "github.com/sandgate/sandgate/clients/go"
)

// Server is a running `sandgate serve`, without TLS on a loopback address.
type Server struct {
	// Namespace is where its sandboxes are.
	Namespace string
	Address   string
	Process   *os.Process
	Client    *sandgate.Client
	// Started is how long it took until it accepted connections.
	Started time.Duration

	log string
	// ended is closed when the process has, as err says.
	ended chan struct{}
	err   error
}

// Order is what Serve starts.
type Order struct {
	// Binary is the sandgate program.
	Binary string
	// Directory is an existing one in which the server keeps what it needs.
	Directory string
	// Kubeconfig is the path of the file by which it reaches the cluster.
	Kubeconfig          string
	Provider, Namespace string
	// Config is the text of the configuration file.
	Config string
	// Flags are further ones of `sandgate serve`.
	Flags []string
}

// Serve starts a server and returns when it accepts connections. The caller stops
// it; it also ends when this process is killed.
func Serve(ctx context.Context, o Order) (_ *Server, err error) {
	file := filepath.Join(o.Directory, "config.yaml")
	if err := os.WriteFile(file, []byte(o.Config), 0o600); err != nil {
		return nil, err
	}
	address, err := FreeAddress()
	if err != nil {
		return nil, err
	}
	s := &Server{Namespace: o.Namespace, Address: address, log: filepath.Join(o.Directory, "log"), ended: make(chan struct{})}
	log, err := os.Create(s.log)
	if err != nil {
		return nil, err
	}
	defer log.Close() // the process has its own
	command := exec.Command(o.Binary, append([]string{
		"serve", "--listen", address, "--provider", o.Provider,
		"--state-dir", filepath.Join(o.Directory, "state"), "--config", file,
		"--kubernetes-kubeconfig", o.Kubeconfig, "--kubernetes-namespace", o.Namespace,
	}, o.Flags...)...)
	command.Stderr = log
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	began := time.Now()
	if err := command.Start(); err != nil {
		return nil, fmt.Errorf("starting %s (run `make build` first): %w", o.Binary, err)
	}
	s.Process = command.Process
	go func() {
		s.err = command.Wait()
		close(s.ended)
	}()
	defer func() {
		if err != nil {
			err = s.Explain(errors.Join(err, s.Stop()))
		}
	}()
	if s.Client, err = sandgate.NewClient(ctx, sandgate.WithAddress(address), sandgate.WithInsecure()); err != nil {
		return nil, err
	}
	err = Wait(ctx, "the server", func() (bool, error) {
		select {
		case <-s.ended:
			return false, errors.New("it ended")
		default:
		}
		conn, err := net.Dial("tcp", address)
		if err == nil {
			conn.Close()
		}
		return err == nil, nil
	})
	s.Started = time.Since(began)
	return s, err
}

// Stop ends the server and returns how it ended. Its sandboxes stay.
func (s *Server) Stop() error {
	if s.Client != nil {
		_ = s.Client.Close()
	}
	_ = s.Process.Signal(syscall.SIGTERM)
	<-s.ended
	return s.err
}

// Explain adds what the server has said to an error.
func (s *Server) Explain(err error) error {
	said, unread := os.ReadFile(s.log)
	if unread != nil {
		return errors.Join(err, unread)
	}
	return fmt.Errorf("%w\n%s", err, said)
}

// FreeAddress returns a loopback address that was free a moment ago.
func FreeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}
