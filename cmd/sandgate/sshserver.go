package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"
	"golang.org/x/crypto/ssh"
	"google.golang.org/grpc"

	sandgate "github.com/sandgate/sandgate/clients/go"
	"github.com/sandgate/sandgate/cmd/sandgate/internal/sshserver"
)

// sshFlags are the flags of the SSH server.
type sshFlags struct {
	listen, keys, hostKey string
	tokens                bool
}

func (c *cli) sshServerCommand() *cobra.Command {
	flags := &sshFlags{}
	cmd := &cobra.Command{
		Use:   "ssh-server [flags]",
		Short: "Serve sandboxes over SSH",
		Long: `Accept SSH connections to sandboxes: the user name is the sandbox's id. ssh, scp,
sftp, rsync and ssh -L work; no sandbox needs an sshd.

Callers log in with a key of the file that --authorized-keys names, or, with --tokens,
with their own token as password. A key acts with the credentials of this program, or
with the token of its option token-file; its option sandboxes limits it to sandboxes:

  sandboxes="build-42,ci-*",token-file="/etc/sandgate/ci.token" ssh-ed25519 AAAA… ci

The file is read again when it changes. ssh-server runs until it is interrupted, which
kills the commands of its connections, and then exits with 0.`,
		Example: `  sandgate ssh-server --authorized-keys ~/.ssh/authorized_keys
  ssh -p 2222 build-42@127.0.0.1
  scp -P 2222 data.csv build-42@127.0.0.1:

  sandgate ssh-server --listen :2222 --tokens --host-key /etc/sandgate/ssh_host_key`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if flags.keys == "" && !flags.tokens {
				return usage(cmd, "nobody can log in; name a file of public keys with --authorized-keys, or accept tokens with --tokens")
			}
			return c.sshServer(cmd.Context(), flags)
		},
	}
	f := cmd.Flags()
	f.StringVar(&flags.listen, "listen", "127.0.0.1:2222", "address to listen on, HOST:PORT; port 0 is a free one")
	f.StringVar(&flags.keys, "authorized-keys", "", "file of the public keys that may log in, in OpenSSH's format")
	f.BoolVar(&flags.tokens, "tokens", false, "accept a token as password; the Sandgate server must authenticate its callers")
	f.StringVar(&flags.hostKey, "host-key", "", "file of the private host key, made if there is none (default sandgate/ssh_host_key in the user's configuration directory)")
	return cmd
}

// sshServer serves until ctx ends.
func (c *cli) sshServer(ctx context.Context, flags *sshFlags) error {
	path := flags.hostKey
	if path == "" {
		dir, err := os.UserConfigDir()
		if err != nil {
			return fmt.Errorf("there is no directory for the host key (%w); name a file with --host-key", err)
		}
		path = filepath.Join(dir, "sandgate", "ssh_host_key")
	}
	log := slog.New(slog.NewTextHandler(c.stderr, nil))
	config := sshserver.Config{Tokens: flags.tokens, Log: log, Connect: c.connectAs}
	var err error
	if config.HostKey, err = sshserver.HostKey(path); err != nil {
		return err
	}
	if flags.keys != "" {
		if config.Keys, err = sshserver.OpenKeys(log, flags.keys); err != nil {
			return err
		}
	}
	server, err := sshserver.New(config)
	if err != nil {
		return err
	}
	// Wrong flags show now and not at the first login.
	client, err := c.connect(ctx)
	if err != nil {
		return err
	}
	if err := client.Close(); err != nil {
		return err
	}
	l, err := net.Listen("tcp", flags.listen)
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }()
	fingerprint := ssh.FingerprintSHA256(config.HostKey.PublicKey())
	if err := c.sshListening(l.Addr(), fingerprint); err != nil {
		return err
	}
	return server.Serve(ctx, l)
}

// sshListening prints where the server listens, and its host key.
func (c *cli) sshListening(at net.Addr, fingerprint string) error {
	if c.json() {
		return json.NewEncoder(c.stdout).Encode(map[string]any{"address": at.String(), "host_key": fingerprint})
	}
	_, err := fmt.Fprintf(c.stdout, "SSH server on %s, host key %s\n", at, fingerprint)
	return err
}

// connectAs returns a client with other credentials than those of the flags.
func (c *cli) connectAs(ctx context.Context, opts ...sandgate.Option) (*sandgate.Client, error) {
	dial := sandgate.WithDialOptions(append(slices.Clip(c.dial), grpc.WithUserAgent("sandgate-ssh/"+version))...)
	return sandgate.NewClient(ctx, append(append(c.options(), dial), opts...)...)
}
