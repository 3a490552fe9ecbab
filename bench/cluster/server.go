package cluster

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"

	sandgate "github.com/sandgate/sandgate/clients/go"
	"github.com/sandgate/sandgate/test/daemon"
)

// Server is a running `sandgate serve`, without TLS on a loopback address.
type Server struct {
	*daemon.Daemon
	// Namespace holds its sandboxes.
	Namespace string
	Client    *sandgate.Client
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
func Serve(ctx context.Context, o Order) (*Server, error) {
	file := filepath.Join(o.Directory, "config.yaml")
	if err := os.WriteFile(file, []byte(o.Config), 0o600); err != nil {
		return nil, err
	}
	d, err := daemon.Start(ctx, daemon.Options{
		Program: o.Binary, Attr: &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM},
		Args: append([]string{
			"--provider", o.Provider, "--state-dir", filepath.Join(o.Directory, "state"), "--config", file,
			"--kubernetes-kubeconfig", o.Kubeconfig, "--kubernetes-namespace", o.Namespace,
		}, o.Flags...),
	})
	if err != nil {
		return nil, err
	}
	s := &Server{Daemon: d, Namespace: o.Namespace}
	if s.Client, err = sandgate.NewClient(ctx, sandgate.WithAddress(d.Address), sandgate.WithInsecure()); err != nil {
		return nil, errors.Join(err, d.Stop())
	}
	return s, nil
}

// Stop stops the server and returns the error that it ended with. Its sandboxes
// remain.
func (s *Server) Stop() error {
	_ = s.Client.Close()
	return s.Daemon.Stop()
}
