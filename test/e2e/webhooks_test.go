package e2e

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// hook is a receiver that rejects messages without its secret's signature.
type hook struct {
	*httptest.Server

	mu     sync.Mutex
	secret []byte
	// order has the messages without repetitions, such as "a created", and ids the id
	// with which each came first.
	order []string
	ids   map[string]string
	// rejected counts messages of another secret, and renamed those that came again
	// with another id.
	rejected int
	renamed  []string
}

func newHook(t *testing.T, secret []byte) *hook {
	h := &hook{secret: secret, ids: make(map[string]string)}
	h.Server = httptest.NewServer(h)
	t.Cleanup(h.Close)
	return h
}

func (h *hook) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var m struct {
		Type string
		Data struct {
			SandboxID string `json:"sandbox_id"`
		}
	}
	if err != nil || json.Unmarshal(body, &m) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	id := r.Header.Get("webhook-id")
	mac := hmac.New(sha256.New, h.secret)
	_, _ = fmt.Fprintf(mac, "%s.%s.%s", id, r.Header.Get("webhook-timestamp"), body)
	if !slices.Contains(strings.Fields(r.Header.Get("webhook-signature")), "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil))) {
		h.rejected++
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	event := m.Data.SandboxID + strings.TrimPrefix(m.Type, "sandbox")
	switch known := h.ids[event]; known {
	case "":
		h.ids[event] = id
		h.order = append(h.order, event)
	case id:
	default:
		h.renamed = append(h.renamed, event)
	}
}

func (h *hook) got() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.order)
}

func (h *hook) has(event string) bool { return slices.Contains(h.got(), event) }

func (h *hook) expect(secret []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.secret = secret
}

// traffic creates and deletes sandboxes until it is stopped.
type traffic struct {
	end  chan struct{}
	done chan struct{}

	mu      sync.Mutex
	count   int
	failure string
}

func startTraffic(s *server) *traffic {
	c := &traffic{end: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(c.done)
		for {
			select {
			case <-c.end:
				return
			default:
			}
			c.mu.Lock()
			id := c.id(c.count)
			c.mu.Unlock()
			for _, args := range [][]string{{"create", id}, {"rm", id}} {
				if r := s.run("", args...); r.code != 0 {
					c.mu.Lock()
					c.failure = fmt.Sprint(args, r.stderr)
					c.mu.Unlock()
					return
				}
			}
			c.mu.Lock()
			c.count++
			c.mu.Unlock()
		}
	}()
	return c
}

func (c *traffic) id(n int) string { return fmt.Sprintf("t%d", n) }

// sandboxes returns how many were created and deleted.
func (c *traffic) sandboxes() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.count
}

func (c *traffic) stop(t *testing.T) {
	t.Helper()
	close(c.end)
	<-c.done
	if c.failure != "" {
		t.Error(c.failure)
	}
}

// Receivers come, change their secrets and go while events come: none of them loses an
// event, or gets one with another id. A wrong file is reported and changes nothing.
func TestWebhooksReload(t *testing.T) {
	need(t)
	dir, err := os.MkdirTemp("", "sandgate-e2e-")
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path+"~", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+"~", path); err != nil {
			t.Fatal(err)
		}
		return path
	}
	secret := func(name string) ([]byte, string) {
		raw := []byte(strings.Repeat(name[:1], 32))
		return raw, write(name, "whsec_"+base64.StdEncoding.EncodeToString(raw)+"\n")
	}
	former, formerFile := secret("former")
	next, nextFile := secret("next")
	kept, added := newHook(t, former), newHook(t, former)
	entry := func(name string, h *hook, secretFile string) string {
		return fmt.Sprintf("- {name: %s, url: %q, secret_file: %s}\n", name, h.URL, secretFile)
	}
	config := write("config.yaml", "webhooks:\n"+entry("kept", kept, formerFile))
	s := newServer(dir, "--config", config, "--log-level", "info")
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.stop(); err != nil {
			t.Error(err)
		}
	})
	const soon = time.Minute
	await := func(what string, is func() bool) {
		t.Helper()
		eventually(t, soon, what, is)
	}
	logged := func(text string) int { return strings.Count(s.log.String(), text) }
	reload := func(text string) {
		t.Helper()
		before := logged("configuration file was reloaded")
		write("config.yaml", text)
		await("the reload", func() bool { return logged("configuration file was reloaded") > before })
	}

	load := startTraffic(s)
	await("the first event", func() bool { return len(kept.got()) > 0 })
	both := "webhooks:\n" + entry("kept", kept, formerFile) + entry("added", added, formerFile)
	reload(both)
	await("an event of the new receiver", func() bool { return len(added.got()) > 0 })

	// The receiver has its next secret before the server has.
	kept.expect(next)
	await("a rejected message", func() bool { kept.mu.Lock(); defer kept.mu.Unlock(); return kept.rejected > 0 })
	reload(strings.Replace(both, formerFile, nextFile, 1))
	since := len(kept.got())
	await("events with the next secret", func() bool { return len(kept.got()) > since+2 })

	for name, bad := range map[string]string{
		"the scheme":         strings.Replace(both, added.URL, "ftp://127.0.0.1/", 1),
		"the secret":         strings.Replace(both, formerFile, formerFile+"x", 1),
		"two of a name":      both + entry("kept", added, formerFile),
		"nothing but a name": "webhooks: [{name: kept}]\n",
	} {
		before := logged("former content stays")
		write("config.yaml", bad)
		await("the report of "+name, func() bool { return logged("former content stays") > before })
		one, two := len(kept.got()), len(added.got())
		await("events after "+name, func() bool { return len(kept.got()) > one && len(added.got()) > two })
	}

	reload("webhooks:\n" + entry("kept", kept, nextFile))
	await("the end of the other receiver", func() bool {
		n := load.sandboxes()
		await("another sandbox", func() bool { return kept.has(load.id(n+1) + ".ended") })
		return !added.has(load.id(n+1) + ".created")
	})
	load.stop(t)
	var want []string
	for n := range load.sandboxes() {
		want = append(want, load.id(n)+".created", load.id(n)+".ended")
	}
	await("the last event", func() bool { return kept.has(want[len(want)-1]) })
	// The first receiver began during the traffic, the second one ended during it.
	got, some := kept.got(), added.got()
	if begin := slices.Index(want, got[0]); begin < 0 || !slices.Equal(got, want[begin:]) {
		t.Errorf("kept: got %v of %v", got, want)
	}
	if begin := slices.Index(want, some[0]); begin < 0 || begin+len(some) > len(want) || !slices.Equal(some, want[begin:begin+len(some)]) {
		t.Errorf("added: got %v of %v", some, want)
	}
	for name, h := range map[string]*hook{"kept": kept, "added": added} {
		if len(h.renamed) > 0 {
			t.Errorf("%s got %v again with other ids", name, h.renamed)
		}
	}
	t.Logf("%d sandboxes; the receivers got %d and %d events", load.sandboxes(), len(got), len(some))
}
