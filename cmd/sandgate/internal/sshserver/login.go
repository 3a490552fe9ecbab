package sshserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"

	"golang.org/x/crypto/ssh"

	sandgate "github.com/sandgate/sandgate/clients/go"
	"github.com/sandgate/sandgate/cmd/sandgate/internal/terminal"
)

// defaultHome is the working directory of a sandbox whose description has none.
const defaultHome = "/workspace"

// login authenticates one connection. Every connection has a client of its own, so that
// the data of one does not fill the window of another.
type login struct {
	server *Server
	log    *slog.Logger

	// After success: the client with the caller's credentials, for whom the connection is
	// counted, what the credentials were, and the directory in which commands start.
	client *sandgate.Client
	caller string
	with   string
	home   string
}

var (
	errDenied      = errors.New("the key may not use this sandbox")
	errConnections = errors.New("too many connections with these credentials; close one")
	errFull        = errors.New("the SSH server has too many connections; try again later")
)

// handshake returns the authenticated connection.
func (l *login) handshake(ctx context.Context, raw net.Conn) (*ssh.ServerConn, <-chan ssh.NewChannel, <-chan *ssh.Request, error) {
	ctx, cancel := context.WithTimeout(ctx, l.server.timing.login)
	defer cancel()
	config := &ssh.ServerConfig{MaxAuthTries: maxAuthTries, ServerVersion: "SSH-2.0-Sandgate"}
	config.AddHostKey(l.server.config.HostKey)
	if keys := l.server.config.Keys; keys != nil {
		config.PublicKeyCallback = func(meta ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
			if _, ok := keys.find(key, meta.User()); !ok {
				return nil, errDenied
			}
			return nil, nil
		}
		config.VerifiedPublicKeyCallback = func(meta ssh.ConnMetadata, key ssh.PublicKey, _ *ssh.Permissions, _ string) (*ssh.Permissions, error) {
			entry, ok := keys.find(key, meta.User())
			if !ok {
				return nil, errDenied
			}
			return nil, l.withKey(ctx, meta.User(), entry, ssh.FingerprintSHA256(key))
		}
	}
	if l.server.config.Tokens {
		config.PasswordCallback = func(meta ssh.ConnMetadata, password []byte) (*ssh.Permissions, error) {
			return nil, l.withToken(ctx, meta.User(), string(password))
		}
	}
	return ssh.NewServerConn(raw, config)
}

// close ends what a login has begun.
func (l *login) close() {
	if l.client == nil {
		return
	}
	_ = l.client.Close()
	l.server.leave(l.caller)
	l.client = nil
}

// withKey logs in the owner of a key.
func (l *login) withKey(ctx context.Context, sandbox string, e entry, fingerprint string) error {
	var opts []sandgate.Option
	if e.tokenFile != "" {
		// Not the certificate of this program: it could stand for another tenant.
		opts = append(opts, sandgate.WithToken(""), sandgate.WithTokenFile(e.tokenFile), sandgate.WithCertificate("", ""))
	}
	return l.enter(ctx, sandbox, fingerprint, false, opts...)
}

// withToken logs in a caller whose password is a token.
func (l *login) withToken(ctx context.Context, sandbox, token string) error {
	if token == "" {
		return errors.New("the password is empty; it must be a token")
	}
	source := func(context.Context) (string, error) { return token, nil }
	return l.enter(ctx, sandbox, "a token", true, sandgate.WithTokenSource(source), sandgate.WithCertificate("", ""))
}

// enter checks with the gateway that the caller may use the sandbox. With identified,
// the gateway must authenticate its callers: one that accepts every token does not
// identify anybody.
func (l *login) enter(ctx context.Context, sandbox, with string, identified bool, opts ...sandgate.Option) (err error) {
	client, err := l.server.config.Connect(ctx, opts...)
	if err != nil {
		return l.refuse(err)
	}
	defer func() {
		if err != nil {
			_ = client.Close()
		}
	}()
	caller := with
	if identified {
		info, err := client.ServerInfo(ctx)
		if err != nil {
			return l.refuse(err)
		}
		principal := info.GetPrincipal()
		if principal.GetName() == "" {
			return l.refuse(errors.New("the server does not authenticate callers, so a token is no proof; log in with a key"))
		}
		caller = fmt.Sprintf("%q of %q", principal.GetName(), principal.GetTenant())
	}
	info, err := client.Sandbox(sandbox).Info(ctx)
	if err != nil {
		return l.refuse(err)
	}
	if err := l.server.admit(caller); err != nil {
		return l.refuse(err)
	}
	l.close()
	l.client, l.caller, l.with, l.home = client, caller, with, cmp.Or(info.GetSpec().GetWorkingDirectory(), defaultHome)
	return nil
}

// refuse returns an error whose text the caller gets to see.
func (l *login) refuse(err error) error {
	l.log.Info("credentials were rejected", "error", err)
	return &ssh.BannerError{Err: err, Message: fmt.Sprintf("sandgate: %s\r\n", terminal.Clean(err.Error()))}
}
