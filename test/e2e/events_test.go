package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandgate/sandgate/test/daemon"
)

// seen collects events, such as "a created", in the order in which they come.
type seen struct {
	mu   sync.Mutex
	list []string
}

func (s *seen) add(id, kind string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = append(s.list, id+" "+strings.ToLower(kind))
}

// none reports whether there is no event yet.
func (s *seen) none() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.list) == 0
}

// await waits for an event.
func (s *seen) await(t *testing.T, who, event string) {
	t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for {
		s.mu.Lock()
		list := strings.Join(s.list, ", ")
		s.mu.Unlock()
		if strings.Contains(", "+list+", ", ", "+event+", ") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s did not get %q: %s", who, event, list)
		}
		<-time.After(50 * time.Millisecond)
	}
}

// Two servers share a state directory and are killed, one after the other. A watch and a
// webhook get every event all the same.
func TestEventsOverKills(t *testing.T) {
	need(t)
	dir, err := os.MkdirTemp("", "sandgate-e2e-")
	if err != nil {
		t.Fatal(err)
	}
	var hooked, watched seen
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var m struct {
			Type string
			Data struct {
				SandboxID string `json:"sandbox_id"`
			}
		}
		if json.NewDecoder(r.Body).Decode(&m) == nil && strings.HasPrefix(r.Header.Get("webhook-signature"), "v1,") {
			hooked.add(m.Data.SandboxID, strings.TrimPrefix(m.Type, "sandbox."))
		}
	}))
	t.Cleanup(receiver.Close)
	secret, config := filepath.Join(dir, "secret"), filepath.Join(dir, "config.yaml")
	for path, text := range map[string]string{
		secret: "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n",
		config: "reaper: {interval: 500ms}\nwebhooks: [{name: test, url: \"" + receiver.URL + "\", secret_file: " + secret + "}]\n",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	one, two := newServer(dir, "--config", config), newServer(dir, "--config", config)
	two.address = "unix://" + filepath.Join(dir, "t.sock")
	for _, s := range []*server{one, two} {
		if err := s.start(); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if err := two.stop(); err != nil {
			t.Error(err)
		}
	})

	ctx, cancel := context.WithCancel(t.Context())
	watch := two.command(ctx, "watch", "--output", "json")
	out, err := watch.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	watch.Stderr = new(daemon.Log)
	if err := watch.Start(); err != nil {
		t.Fatal(err)
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			var m struct {
				Event struct{ SandboxID, Type string }
			}
			if json.Unmarshal(lines.Bytes(), &m) == nil {
				watched.add(m.Event.SandboxID, strings.TrimPrefix(m.Event.Type, "EVENT_TYPE_"))
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-read
		_ = watch.Wait()
	})
	both := func(event string) {
		t.Helper()
		watched.await(t, "the watch", event)
		hooked.await(t, "the webhook", event)
	}
	// The watch and the webhook have begun when they have an event.
	for watched.none() || hooked.none() {
		two.must(t, "create", "first")
		two.must(t, "rm", "first")
	}
	one.must(t, "create", "a")
	both("a created")
	one.must(t, "create", "b")
	one.Kill() // it led
	both("b created")
	two.must(t, "rm", "a")
	two.Kill()
	if err := two.start(); err != nil {
		t.Fatal(err)
	}
	both("a ended")
	two.must(t, "create", "c")
	both("c created")
	two.must(t, "update", "c", "--ttl", "1s")
	both("c ended")
	two.must(t, "rm", "b")
	both("b ended")
}
