package webhook

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/events"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	wait       = 3 * time.Minute
	testSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
)

// The value is that of another implementation of HMAC.
func TestSign(t *testing.T) {
	secrets, err := parseSecrets([]byte(testSecret + "\n\n whsec_" + base64.StdEncoding.EncodeToString(make([]byte, 24)) + "\n"))
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Fields(sign(secrets, "msg_p5jXN8AQM9LrM0D4loKWxJek", time.Unix(1614265330, 0), []byte(`{"test": 2432232314}`)))
	if len(got) != 2 || got[0] != "v1,T+tuuVQB1sgL68fAW3BxL0cqJ33EzFeEYfqccz8LH9M=" || got[1] == got[0] {
		t.Errorf("%q", got)
	}
}

func TestCheck(t *testing.T) {
	good := Endpoint{Name: "a", URL: "https://example.com/x", SecretFile: secretFile(t, testSecret)}
	for name, c := range map[string]struct {
		change func(*Endpoint)
		want   string
	}{
		"good":             {func(*Endpoint) {}, ""},
		"loopback":         {func(e *Endpoint) { e.URL = "http://[::1]:8080/" }, ""},
		"plain on purpose": {func(e *Endpoint) { e.URL, e.PlainHTTP = "http://example.com", true }, ""},
		"plain":            {func(e *Endpoint) { e.URL = "http://example.com" }, "plain_http"},
		"no host":          {func(e *Endpoint) { e.URL = "https:///x" }, "HOST"},
		"another scheme":   {func(e *Endpoint) { e.URL = "file://host/etc/passwd" }, "https"},
		"credentials":      {func(e *Endpoint) { e.URL = "https://u:hunter2@example.com" }, "credentials"},
		"control bytes":    {func(e *Endpoint) { e.URL = "https://ex\nample.com" }, "malformed"},
		"name":             {func(e *Endpoint) { e.Name = "A b" }, "name must"},
		"type":             {func(e *Endpoint) { e.Types = []events.Type{"nothing"} }, "no type"},
		"no secret":        {func(e *Endpoint) { e.SecretFile = "" }, "secret_file is missing"},
		"missing secret":   {func(e *Endpoint) { e.SecretFile += "x" }, "no such file"},
		"short secret":     {func(e *Endpoint) { e.SecretFile = secretFile(t, "whsec_aGk=") }, "24 to 64"},
		"raw secret":       {func(e *Endpoint) { e.SecretFile = secretFile(t, "hunter2") }, "24 to 64"},
		"empty secret":     {func(e *Endpoint) { e.SecretFile = secretFile(t, "\n") }, "1 to 4"},
		"large secret":     {func(e *Endpoint) { e.SecretFile = secretFile(t, strings.Repeat("x", 5000)) }, "larger"},
	} {
		e := good
		c.change(&e)
		err := cmp.Or(Check([]Endpoint{e}), CheckSecrets([]Endpoint{e}))
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) || strings.Contains(fmt.Sprint(err), "hunter2") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := Check([]Endpoint{good, good}); err == nil || !strings.Contains(err.Error(), "two named a") {
		t.Error(err)
	}
}

func FuzzParseSecrets(f *testing.F) {
	f.Add([]byte(testSecret))
	f.Add([]byte("whsec_\n\x00"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		secrets, err := parseSecrets(raw)
		for _, s := range secrets {
			if len(s) < minSecret || len(s) > maxSecret {
				t.Errorf("a secret has %d bytes", len(s))
			}
		}
		if (err == nil) != (len(secrets) > 0) {
			t.Errorf("%d secrets, %v", len(secrets), err)
		}
	})
}

func secretFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Messages are signed, complete and in order, and an endpoint gets its tenants alone.
func TestDeliver(t *testing.T) {
	h, all, blue := newHarness(t), newReceiver(t), newReceiver(t)
	some := blue.endpoint("blue")
	some.Tenants, some.Types = []string{"blue"}, []events.Type{events.Created}
	h.start(all.endpoint("all"), some)
	h.begun("all")
	h.begun("blue")
	h.append("red", 1)
	h.append("blue", 2, 3)
	got := all.await("all", func(got []message) bool { return len(got) == 3 })
	if m := got[0]; m.Type != "sandbox.created" || m.Data.Tenant != "red" || m.Data.SandboxID != "1" || m.Data.State != "active" ||
		m.Data.Labels["k"] != "v" || m.Data.Reason != events.Requested || m.Timestamp.IsZero() || got[2].Data.SandboxID != "3" {
		t.Errorf("%+v", got)
	}
	if got := blue.await("blue", func(got []message) bool { return len(got) == 2 }); got[0].Data.Tenant != "blue" {
		t.Errorf("%+v", got)
	}
}

// A receiver that is down, lies, redirects, or hangs up gets everything once it works.
func TestReceiverFails(t *testing.T) {
	elsewhere := newReceiver(t)
	for name, answer := range map[string]func(http.ResponseWriter, *http.Request){
		"error": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) },
		"redirect": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere.server.URL, http.StatusTemporaryRedirect)
		},
		"hang up": func(w http.ResponseWriter, _ *http.Request) {
			if conn, _, err := w.(http.Hijacker).Hijack(); err == nil {
				_ = conn.Close()
			}
		},
		"no HTTP": func(w http.ResponseWriter, _ *http.Request) {
			if conn, _, err := w.(http.Hijacker).Hijack(); err == nil {
				_, _ = io.WriteString(conn, "220 smtp.example.com\r\n")
				_ = conn.Close()
			}
		},
		"endless header": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X", strings.Repeat("x", maxAnswerHeader+1<<12))
		},
	} {
		t.Run(name, func(t *testing.T) {
			h, r := newHarness(t), newReceiver(t)
			r.set(answer)
			h.start(r.endpoint("a"))
			h.begun("a")
			h.append("t", 1, 2)
			for range 3 {
				if err := <-h.attempts; err == nil {
					t.Fatal("an attempt succeeded")
				}
			}
			r.set(nil)
			got := r.await("all", func(got []message) bool { return distinct(got) == 2 })
			if got[0].Data.SandboxID != "1" {
				t.Errorf("%+v", got)
			}
		})
	}
	if len(elsewhere.got) > 0 {
		t.Error("a redirect was followed")
	}
}

// A body that never ends, or is too long, changes nothing: the status is the answer.
func TestReceiverTalks(t *testing.T) {
	h, r := newHarness(t), newReceiver(t)
	calls := make(chan string, 10)
	r.set(func(w http.ResponseWriter, req *http.Request) {
		for range 100 {
			if _, err := w.Write(make([]byte, 1<<10)); err != nil {
				break
			}
		}
		calls <- req.Header.Get("webhook-id")
	})
	h.start(r.endpoint("a"))
	h.begun("a")
	h.append("t", 1, 2)
	if one, two := <-calls, <-calls; one == two {
		t.Error("the first was sent again")
	}
	for range 2 {
		if err := <-h.attempts; err != nil {
			t.Error(err)
		}
	}
}

// A receiver that is down does not delay another one, and keeps nothing from
// stopping.
func TestReceiverDown(t *testing.T) {
	h, up := newHarness(t), newReceiver(t)
	l, err := net.Listen("tcp", "127.0.0.1:0") // accepts, and never answers
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	down := up.endpoint("down")
	down.URL = "http://" + l.Addr().String()
	_, stop := h.start(down, up.endpoint("up"))
	h.begun("down")
	h.begun("up")
	h.append("t", 1, 2, 3)
	up.await("the other", func(got []message) bool { return len(got) == 3 })
	stop()
}

// Servers that are killed one after the other, with a receiver that fails, deliver
// every event at least once and in order.
func TestRestarts(t *testing.T) {
	h, r := newHarness(t), newReceiver(t)
	endpoint := r.endpoint("a")
	_, stop := h.start(endpoint)
	h.begun("a")
	const n = 300
	for i := range n {
		h.append("t", i)
		switch i % 60 {
		case 20:
			r.set(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) })
		case 30:
			stop()
		case 40:
			_, stop = h.start(endpoint)
		case 50:
			r.set(nil)
		}
	}
	next := 0
	for _, m := range r.await("all", func(got []message) bool { return distinct(got) == n }) {
		if m.Data.SandboxID == strconv.Itoa(next) {
			next++
		} else if i, err := strconv.Atoi(m.Data.SandboxID); err != nil || i > next {
			t.Fatalf("%s came before %d", m.Data.SandboxID, next)
		}
	}
}

// A flood reaches a receiver whole.
func TestFlood(t *testing.T) {
	h, r := newHarness(t), newReceiver(t)
	h.start(r.endpoint("a"))
	h.begun("a")
	const n = 2_000
	var numbers []int
	for i := range n {
		numbers = append(numbers, i)
	}
	h.append("t", numbers...)
	r.await("all", func(got []message) bool { return len(got) == n })
}

// Endpoints come, change and go without a restart, and secrets rotate.
func TestConfigure(t *testing.T) {
	h, one, two := newHarness(t), newReceiver(t), newReceiver(t)
	first := one.endpoint("one")
	s, _ := h.start(first)
	h.begun("one")
	h.append("t", 1)
	one.await("one", func(got []message) bool { return len(got) == 1 })
	s.Configure([]Endpoint{first, two.endpoint("two")})
	h.begun("two")
	h.append("t", 2)
	one.await("both", func(got []message) bool { return len(got) == 2 })
	two.await("both", func(got []message) bool { return len(got) == 1 && got[0].Data.SandboxID == "2" })
	// The receiver's next secret is in the file before it uses it.
	next := "whsec_" + base64.StdEncoding.EncodeToString([]byte(strings.Repeat("n", 32)))
	if err := os.WriteFile(first.SecretFile, []byte(testSecret+"\n"+next), 0o600); err != nil {
		t.Fatal(err)
	}
	one.mu.Lock()
	one.secret = next
	one.mu.Unlock()
	h.append("t", 3)
	one.await("rotated", func(got []message) bool { return len(got) == 3 })
	// It verifies by the secret that it has then.
	two.await("the third", func(got []message) bool { return len(got) == 2 })
	s.Configure([]Endpoint{first})
	if name := <-h.stopped; name != "two" {
		t.Errorf("%s stopped", name)
	}
	moved := first
	moved.URL = two.server.URL
	s.Configure([]Endpoint{moved})
	if name := <-h.stopped; name != "one" {
		t.Errorf("%s stopped", name)
	}
	two.mu.Lock()
	two.secret = next
	two.mu.Unlock()
	h.append("t", 4)
	two.await("moved", func(got []message) bool { return len(got) > 1 && got[len(got)-1].Data.SandboxID == "4" })
}

// An event that cannot be delivered for a day is given up, so that others follow.
func TestGiveUp(t *testing.T) {
	h, r := newHarness(t), newReceiver(t)
	r.set(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadRequest) })
	h.start(r.endpoint("a"))
	h.begun("a")
	old := events.New(events.Created, providers.Info{Name: "old", Spec: providers.Spec{Tenant: "t", ID: "old"}}, "")
	old.Time = time.Now().Add(-maxAge - time.Minute)
	if err := h.journal.Append(t.Context(), []events.Event{old}); err != nil {
		t.Fatal(err)
	}
	if name := <-h.dropped; name != "a" {
		t.Errorf("%s", name)
	}
	r.set(nil)
	h.append("t", 1)
	r.await("the next", func(got []message) bool { return len(got) == 1 && got[0].Data.SandboxID == "1" })
}
