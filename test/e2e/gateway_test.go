package e2e

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	sandgate "github.com/sandgate/sandgate/clients/go"
	"github.com/sandgate/sandgate/test/daemon"
	"github.com/sandgate/sandgate/test/gateway"
)

// through connects through a gateway.
func through(t *testing.T, g *gateway.Gateway, token string) *sandgate.Client {
	t.Helper()
	client, err := sandgate.NewClient(t.Context(), sandgate.WithAddress(g.Address), sandgate.WithCAFile(g.CAFile), sandgate.WithToken(token))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// guarded starts a server on a TCP port that requires a token, and returns both.
func guarded(t *testing.T) (*server, string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "sandgate-e2e-")
	if err != nil {
		t.Fatal(err)
	}
	mint := exec.Command(daemon.Program(), "token", "new", "--name", "caller")
	var entry bytes.Buffer
	mint.Stderr = &entry
	token, err := mint.Output()
	if err != nil {
		t.Fatal(err, entry.String())
	}
	_, list, _ := strings.Cut(entry.String(), "\n  - ")
	tokens := filepath.Join(dir, "tokens.yaml")
	if err := os.WriteFile(tokens, []byte("tokens:\n  - "+list), 0o600); err != nil {
		t.Fatal(err)
	}
	s := newServer(dir, "--tokens-file", tokens)
	s.address = "127.0.0.1:0"
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	return s, strings.TrimSpace(string(token))
}

// created makes a sandbox that goes with the test.
func created(t *testing.T, client *sandgate.Client) *sandgate.Sandbox {
	t.Helper()
	box, _, err := client.Create(t.Context(), sandgate.CreateRequest{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := box.Delete(ctx); err != nil {
			t.Error(err)
		}
	})
	return box
}

// TestReverseProxyCarriesEveryCall puts an HTTP/2 reverse proxy between client and server.
func TestReverseProxyCarriesEveryCall(t *testing.T) {
	need(t)
	s, token := guarded(t)
	g := gateway.Start(t, s.address)
	client := through(t, g, token)
	box := created(t, client)

	t.Run("S1-8 S4-3 S5-4 commands and errors", func(t *testing.T) {
		got, err := box.Execute(t.Context(), sandgate.ExecuteRequest{Shell: "cat; echo problem >&2; exit 3", Stdin: []byte("input")})
		if err != nil || string(got.Stdout) != "input" || string(got.Stderr) != "problem\n" || got.Code() != 3 {
			t.Errorf("%+v, %v", got, err)
		}
		if _, err := client.Sandbox("sb-none").Info(t.Context()); !errors.Is(err, sandgate.ErrSandboxNotFound) {
			t.Errorf("no such sandbox: %v", err)
		}
		if _, err := through(t, g, "wrong").Sandbox(box.ID()).Info(t.Context()); !errors.Is(err, sandgate.ErrAuthentication) {
			t.Errorf("a wrong token: %v", err)
		}
	})
	t.Run("S1-8 S4-3 S5-4 a cancelled command is killed", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		p, err := box.Start(ctx, sandgate.ExecuteRequest{Shell: "echo runs; sleep 1000"})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		for event, err := range p.Events() {
			if err != nil && ctx.Err() == nil {
				t.Error(err)
			}
			if event.Output != nil {
				cancel()
			}
		}
		eventually(t, 20*time.Second, "the command ends", func() bool {
			out, err := box.Execute(t.Context(), sandgate.ExecuteRequest{Shell: "ps ax | grep -c '[s]leep 1000'"})
			return err == nil && string(out.Stdout) == "0\n"
		})
	})
	t.Run("S1-8 S4-3 S5-4 a reload keeps streams", func(t *testing.T) {
		survive(t, box, func() {
			if err := g.Reload(); err != nil {
				t.Error(err)
			}
		})
	})
	t.Run("S1-8 S4-3 S5-4 C7 killed and started again, nothing is lost", func(t *testing.T) {
		survive(t, box, func() {
			g.Kill()
			g.Run(t)
		})
	})
}

// TestGatewayThatEndsSilentStreams has a gateway that gives up on streams after two seconds of
// silence.
func TestGatewayThatEndsSilentStreams(t *testing.T) {
	need(t)
	s, token := guarded(t)
	client := through(t, gateway.Start(t, s.address, "24h", "2s"), token)
	box := created(t, client)
	t.Run("S1-8 S4-3 S5-4 C7 a long silence", func(t *testing.T) {
		got, err := box.Execute(t.Context(), sandgate.ExecuteRequest{Shell: "echo begin; sleep 7; echo end; exit 3"})
		if err != nil || string(got.Stdout) != "begin\nend\n" || got.Code() != 3 {
			t.Errorf("%+v, %v", got, err)
		}
	})
}

// survive has a command, an upload and a download cross the gateway while a fault
// happens, once all three are under way, and compares what arrives.
func survive(t *testing.T, box *sandgate.Sandbox, fault func()) {
	t.Helper()
	content := make([]byte, 12<<20)
	_, _ = rand.Read(content)
	if _, err := box.UploadFile(t.Context(), sandgate.File{Path: "/workspace/down", Content: bytes.NewReader(content)}); err != nil {
		t.Fatal(err)
	}
	_, err := box.Execute(t.Context(), sandgate.ExecuteRequest{Shell: "rm -f /workspace/end /workspace/up"})
	if err != nil {
		t.Fatal(err)
	}
	begun, over := make(chan string, 3), make(chan struct{})
	results := make(chan error, 3)
	go func() {
		results <- func() error {
			p, err := box.Start(t.Context(), sandgate.ExecuteRequest{Shell: counting})
			if err != nil {
				return err
			}
			defer p.Close()
			var out strings.Builder
			for event, err := range p.Events() {
				if err != nil {
					return err
				}
				if out.Len() == 0 && event.Output != nil {
					begun <- "command"
				}
				out.Write(event.Output.GetData())
			}
			if p.Exit().GetExitCode() != 7 {
				return fmt.Errorf("the command ended %v", p.Exit())
			}
			checkCounted(t, out.String())
			return nil
		}()
	}()
	// Both copies stop in the middle until the fault is over.
	pause := func(name string) func(int64) {
		var once sync.Once
		return func(done int64) {
			if done >= 4<<20 {
				once.Do(func() { begun <- name })
				<-over
			}
		}
	}
	go func() {
		_, err := box.UploadFile(t.Context(), sandgate.File{Path: "/workspace/up", Content: bytes.NewReader(content), Progress: pause("upload")})
		results <- err
	}()
	go func() {
		var down bytes.Buffer
		wait := pause("download")
		_, err := box.DownloadFile(t.Context(), "/workspace/down", &down, func(done, _ int64) { wait(done) })
		if err == nil && !bytes.Equal(down.Bytes(), content) {
			err = errors.New("the download differs")
		}
		results <- err
	}()
	for range 3 {
		select {
		case <-begun:
		case err := <-results:
			t.Fatalf("before the fault: %v", err)
		case <-time.After(time.Minute):
			t.Fatal("not all streams began")
		}
	}
	fault()
	close(over)
	if _, err := box.Execute(t.Context(), sandgate.ExecuteRequest{Shell: "touch /workspace/end"}); err != nil {
		t.Error(err)
	}
	for range 3 {
		select {
		case err := <-results:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(2 * time.Minute):
			t.Fatal("not all streams ended")
		}
	}
	var up bytes.Buffer
	if _, err := box.DownloadFile(t.Context(), "/workspace/up", &up, nil); err != nil || !bytes.Equal(up.Bytes(), content) {
		t.Errorf("the upload has %d bytes: %v", up.Len(), err)
	}
}
