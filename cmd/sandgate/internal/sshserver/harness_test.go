package sshserver

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/crypto/ssh"
	"google.golang.org/grpc/metadata"

	sandgate "github.com/sandgate/sandgate/clients/go"
	"github.com/sandgate/sandgate/server"
	"github.com/sandgate/sandgate/server/authn"
	"github.com/sandgate/sandgate/test/daemon"
	"github.com/sandgate/sandgate/test/testserver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds what takes a moment on an idle machine.
const patience = 2 * time.Minute

// tokens authenticates callers: the token is the name of the tenant.
type tokens struct{}

func (tokens) Name() string { return "test" }

func (tokens) Authenticate(ctx context.Context) (authn.Principal, error) {
	values := metadata.ValueFromIncomingContext(ctx, "authorization")
	if len(values) == 0 {
		return authn.Principal{}, authn.ErrNoCredentials
	}
	tenant := strings.TrimPrefix(values[0], "Bearer ")
	if tenant != "red" && tenant != "blue" {
		return authn.Principal{}, authn.ErrUnknownCredentials
	}
	return authn.Principal{Name: tenant, Tenant: tenant}, nil
}

// bed is an SSH server before a gateway with the sandbox "box", whose commands run on
// this machine.
type bed struct {
	t       *testing.T
	gateway string // address
	sandbox *sandgate.Sandbox
	home    string // working directory of the sandbox
	host    ssh.Signer
	key     ssh.Signer // of a user
	keys    string     // file
	address string
	log     *daemon.Log
	stop    context.CancelCauseFunc
	served  chan error
}

// newSigner makes a key.
func newSigner(t testing.TB) ssh.Signer {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return signer
}

func line(s ssh.Signer) string { return string(ssh.MarshalAuthorizedKey(s.PublicKey())) }

// open starts a gateway and an SSH server before it. With auth, callers have tokens, and
// the SSH server that of tenant "red".
func open(t *testing.T, auth authn.Authenticator, change func(*Server)) *bed {
	t.Helper()
	machine, dir := testserver.Machine(t)
	b := &bed{t: t, host: newSigner(t), key: newSigner(t), keys: filepath.Join(dir, "keys"), log: new(daemon.Log)}
	b.gateway, _ = testserver.Serve(t, dir, server.Config{Provider: machine.Open(), Authenticator: auth, Logger: slog.New(slog.DiscardHandler)})
	client, err := b.connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	if b.home, err = os.MkdirTemp(dir, "home"); err != nil {
		t.Fatal(err)
	}
	b.sandbox, _, err = client.Create(t.Context(), sandgate.CreateRequest{ID: "box", Spec: &sandgate.Spec{WorkingDirectory: b.home}})
	if err != nil {
		t.Fatal(err)
	}
	b.setKeys(line(b.key))
	b.serve(change)
	return b
}

// connect is Config.Connect.
func (b *bed) connect(ctx context.Context, opts ...sandgate.Option) (*sandgate.Client, error) {
	return sandgate.NewClient(ctx, append([]sandgate.Option{sandgate.WithAddress(b.gateway), sandgate.WithToken("red")}, opts...)...)
}

func (b *bed) setKeys(content string) {
	b.t.Helper()
	if err := os.WriteFile(b.keys, []byte(content), 0o600); err != nil {
		b.t.Fatal(err)
	}
}

// serve starts the SSH server.
func (b *bed) serve(change func(*Server)) {
	b.t.Helper()
	log := slog.New(slog.NewTextHandler(b.log, nil))
	keys, err := OpenKeys(log, b.keys)
	if err != nil {
		b.t.Fatal(err)
	}
	s, err := New(Config{Connect: b.connect, HostKey: b.host, Keys: keys, Tokens: true, Log: log})
	if err != nil {
		b.t.Fatal(err)
	}
	if change != nil {
		change(s)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	b.address, b.stop, b.served = l.Addr().String(), cancel, make(chan error, 1)
	go func() { b.served <- s.Serve(ctx, l) }()
	b.t.Cleanup(b.end)
}

// end stops the SSH server.
func (b *bed) end() {
	b.stop(nil)
	select {
	case err, ok := <-b.served:
		if ok {
			close(b.served)
		}
		if err != nil {
			b.t.Error(err)
		}
	case <-time.After(patience):
		b.t.Error("the server does not end")
	}
}

// dial logs in.
func (b *bed) dial(user string, auth ...ssh.AuthMethod) (*ssh.Client, string, error) {
	if len(auth) == 0 {
		auth = []ssh.AuthMethod{ssh.PublicKeys(b.key)}
	}
	banner := ""
	client, err := ssh.Dial("tcp", b.address, &ssh.ClientConfig{
		User: user, Auth: auth, HostKeyCallback: ssh.FixedHostKey(b.host.PublicKey()), Timeout: patience,
		BannerCallback: func(message string) error { banner += message; return nil },
	})
	return client, banner, err
}

// login logs in to the sandbox.
func (b *bed) login() *ssh.Client {
	b.t.Helper()
	client, banner, err := b.dial("box")
	if err != nil {
		b.t.Fatal(err, banner)
	}
	b.t.Cleanup(func() { _ = client.Close() })
	return client
}

// session opens a session with its output.
func (b *bed) session(client *ssh.Client) (s *ssh.Session, stdout, stderr *bytes.Buffer) {
	b.t.Helper()
	s, err := client.NewSession()
	if err != nil {
		b.t.Fatal(err)
	}
	stdout, stderr = &bytes.Buffer{}, &bytes.Buffer{}
	s.Stdout, s.Stderr = stdout, stderr
	b.t.Cleanup(func() { _ = s.Close() })
	return s, stdout, stderr
}

// eventually waits until f returns true.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !f(); {
		if time.Now().After(deadline) {
			t.Fatal("not in time: " + what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// running counts the sandbox's commands.
func (b *bed) running() int {
	b.t.Helper()
	all, err := b.sandbox.Processes(b.t.Context(), false)
	if err != nil {
		b.t.Fatal(err)
	}
	return len(all)
}

// idle waits until no command runs.
func (b *bed) idle() {
	b.t.Helper()
	eventually(b.t, "no command is left", func() bool { return b.running() == 0 })
}
