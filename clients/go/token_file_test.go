package sandgate

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"

	"github.com/sandgate/sandgate/clients/go/fake"
)

// writeToken replaces a token file, as a refresher does.
func writeToken(t *testing.T, path, token string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

func TestTokenFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	server := &fake.Server{Token: "one"}
	client := connect(t, server, WithTokenFile(path))
	for name, content := range map[string]string{"empty": "\n", "too large": strings.Repeat("x", maxTokenFile+1)} {
		writeToken(t, path, content)
		if _, err := client.ServerInfo(within(t)); !errors.Is(err, ErrAuthentication) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, err := client.ServerInfo(within(t)); !errors.Is(err, ErrAuthentication) || !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), path) {
		t.Errorf("missing: %v", err)
	}
	for _, token := range []string{"one", "two"} {
		server.SetToken(token)
		writeToken(t, path, token+"\n")
		if _, err := client.ServerInfo(within(t)); err != nil {
			t.Fatal(err)
		}
	}
	if n := server.Calls("GetServerInfo"); n != 2 {
		t.Errorf("the server got %d calls", n)
	}
	// While the file is being replaced, the client has the last token.
	writeToken(t, path, "")
	if _, err := client.ServerInfo(within(t)); err != nil {
		t.Errorf("empty: %v", err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, err := client.ServerInfo(within(t)); err != nil {
		t.Errorf("missing: %v", err)
	}
}

func TestTokenPrecedence(t *testing.T) {
	both := map[string]string{"SANDGATE_TOKEN": "e", "SANDGATE_TOKEN_FILE": "ef"}
	source := WithTokenSource(func(context.Context) (string, error) { return "s", nil })
	for name, tt := range map[string]struct {
		env         map[string]string
		opts        []Option
		token, file string
		bad         bool
	}{
		"environment":                      {env: map[string]string{"SANDGATE_TOKEN": "e"}, token: "e"},
		"file of the environment":          {env: map[string]string{"SANDGATE_TOKEN_FILE": "ef"}, file: "ef"},
		"both of the environment":          {env: both, bad: true},
		"option":                           {env: both, opts: []Option{WithToken("o")}, token: "o"},
		"no token":                         {env: both, opts: []Option{WithToken("")}},
		"file option":                      {env: both, opts: []Option{WithTokenFile("of")}, file: "of"},
		"both options":                     {opts: []Option{WithToken("o"), WithTokenFile("of")}, bad: true},
		"source beside those of all kinds": {env: both, opts: []Option{WithToken("o"), WithTokenFile("of"), source}, token: "o", file: "of"},
	} {
		c, err := newConfig(func(key string) string { return tt.env[key] }, tt.opts)
		switch {
		case tt.bad:
			if !errors.Is(err, ErrInvalidRequest) || !strings.Contains(err.Error(), "SANDGATE_TOKEN_FILE") {
				t.Errorf("%s: error %v", name, err)
			}
		case err != nil || c.token != tt.token || c.tokenFile != tt.file:
			t.Errorf("%s: got %+v, %v", name, c, err)
		}
	}
	if _, err := NewClient(t.Context(), WithAddress("example.com:1"), WithTokenFile("f")); !errors.Is(err, ErrInvalidRequest) {
		t.Errorf("a token file without TLS: %v", err)
	}
}

// A rejected call is made once more if the token has changed since it was sent, also a
// call that is not idempotent: the server has not begun it.
func TestRejectedCallIsRepeatedWithAChangedToken(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	writeToken(t, path, "old")
	server := &fake.Server{Token: "new"}
	var renew atomic.Bool
	client := connect(t, server, WithTokenFile(path))
	server.Rejected = func() {
		if renew.Load() {
			writeToken(t, path, "new")
		}
	}
	calls := map[string]func(ctx context.Context, s *Sandbox) error{
		"GetSandbox":    func(ctx context.Context, s *Sandbox) error { _, err := s.Info(ctx); return err },
		"SignalProcess": func(ctx context.Context, s *Sandbox) error { _, err := s.Signal(ctx, "x", "SIGTERM", Tree); return err },
		"Execute": func(ctx context.Context, s *Sandbox) error {
			_, err := s.Execute(ctx, ExecuteRequest{Shell: "x"})
			return err
		},
		"Download": func(ctx context.Context, s *Sandbox) error { _, err := s.Download(ctx, "/x"); return err },
		"Upload": func(ctx context.Context, s *Sandbox) error {
			_, err := s.UploadFile(ctx, File{Path: "/x", Content: strings.NewReader("x")})
			return err
		},
		"Forward": func(ctx context.Context, s *Sandbox) error { _, err := s.Connect(ctx, 1); return err },
	}
	for name, call := range calls {
		for _, renewed := range []bool{false, true} {
			writeToken(t, path, "old")
			renew.Store(renewed)
			before := server.Calls(name)
			err := call(within(t), client.Sandbox("a"))
			want := 1
			if renewed {
				want = 2
			}
			if errors.Is(err, ErrAuthentication) == renewed || server.Calls(name)-before != want {
				t.Errorf("%s, renewed %t: %v after %d calls", name, renewed, err, server.Calls(name)-before)
			}
		}
	}
}

// A source that returns another token each time does not lead to more than one retry.
func TestTokenIsRenewedOnce(t *testing.T) {
	var tokens atomic.Int32
	server := &fake.Server{Token: "never"}
	client := connect(t, server, WithTokenSource(func(context.Context) (string, error) {
		return fmt.Sprint(tokens.Add(1)), nil
	}))
	if _, err := client.ServerInfo(within(t)); !errors.Is(err, ErrAuthentication) {
		t.Errorf("error %v", err)
	}
	if _, err := client.Sandbox("a").Execute(within(t), ExecuteRequest{Shell: "x"}); !errors.Is(err, ErrAuthentication) {
		t.Errorf("error %v", err)
	}
	if unary, streams := server.Calls("GetServerInfo"), server.Calls("Execute"); unary != 2 || streams != 2 {
		t.Errorf("the server got %d and %d calls", unary, streams)
	}
}

// The outcome of a call whose credentials ended while it ran is unknown.
func TestOutcomeIsUnknownIfCredentialsEndDuringACall(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	writeToken(t, path, "old")
	var failures atomic.Int32
	server := &fake.Server{Fail: func(string) error {
		if failures.Add(-1) < 0 {
			return nil
		}
		writeToken(t, path, "new")
		return fake.Error(codes.Unauthenticated, "CREDENTIALS_INVALID", "expired while it ran",
			&errdetails.ErrorInfo{Reason: "CREDENTIALS_INVALID", Domain: "sandgate", Metadata: map[string]string{"outcome": "unknown"}})
	}}
	sandbox := create(t, connect(t, server, WithTokenFile(path)), "a")
	failures.Store(1)
	if _, err := sandbox.Info(within(t)); err != nil {
		t.Errorf("an idempotent call: %v", err)
	}
	writeToken(t, path, "old")
	failures.Store(1)
	if _, err := sandbox.Edit(within(t), "/x", "a", "b", false); !errors.Is(err, ErrAuthentication) || server.Calls("EditFile") != 1 {
		t.Errorf("another call: %v after %d calls", err, server.Calls("EditFile"))
	}
}

// A command's stream whose token expires continues with the next one, as often as that
// happens.
func TestReattachWithANewToken(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	writeToken(t, path, "t0")
	steps := make(chan struct{})
	server := &fake.Server{Token: "t0", Play: func(r *fake.Run) {
		for i := range 5 {
			r.Stdout(fmt.Sprintf("%d\n", i))
			<-steps
		}
	}}
	process, err := create(t, connect(t, server, WithTokenFile(path)), "a").Start(within(t), ExecuteRequest{Shell: "x"})
	if err != nil {
		t.Fatal(err)
	}
	defer process.Close()
	result, n := &Result{}, 0
	for event, err := range process.Events() {
		if err != nil {
			t.Fatal(err)
		}
		result.add(event)
		if event.Output != nil {
			n++
			writeToken(t, path, fmt.Sprintf("t%d", n))
			server.SetToken(fmt.Sprintf("t%d", n))
			steps <- struct{}{}
		}
	}
	if string(result.Stdout) != "0\n1\n2\n3\n4\n" || server.Calls("Execute") != 1 || server.Calls("Attach") < 4 {
		t.Errorf("got %q, %d attaches", result.Stdout, server.Calls("Attach"))
	}
}

func TestExpiredTokenThatIsNotReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	writeToken(t, path, "old")
	server := &fake.Server{Token: "old", Play: func(r *fake.Run) {
		r.Stdout("half")
		<-r.Killed
	}}
	process, err := create(t, connect(t, server, WithTokenFile(path)), "a").Start(within(t), ExecuteRequest{Shell: "x", Detach: true})
	if err != nil {
		t.Fatal(err)
	}
	defer process.Close()
	server.SetToken("new")
	if _, err := process.Wait(); !errors.Is(err, ErrAuthentication) {
		t.Errorf("error %v", err)
	}
	if n := server.Calls("Attach"); n != 0 {
		t.Errorf("attached %d times", n)
	}
}
