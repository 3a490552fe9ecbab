package serve

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

func (s *served) get(path string) (int, string) {
	s.t.Helper()
	_, at, ok := strings.Cut(s.log(), "metrics and health at ")
	if !ok {
		s.t.Fatalf("no address in %s", s.log())
	}
	at, _, _ = strings.Cut(at, "\n")
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, "http://"+at+path, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func TestServeAdminListener(t *testing.T) {
	s := startServer(t, "--admin-listen", ":0")
	if !strings.Contains(s.log(), "metrics and health at 127.0.0.1:") {
		t.Errorf("a port without a host is not loopback's: %s", s.log())
	}
	s.call()
	for path, want := range map[string]string{
		"/metrics": `grpc_server_started_total{grpc_method="GetServerInfo"`, "/healthz": "ok", "/readyz": "ok",
	} {
		if code, body := s.get(path); code != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("%s: %d, %s", path, code, body)
		}
	}
	if code, _ := s.get("/debug/pprof/"); code != http.StatusNotFound {
		t.Errorf("profiles without --pprof: %d", code)
	}
}

func TestServeAdminListenerBeyondLoopback(t *testing.T) {
	for name, c := range map[string]struct {
		flags    adminConfig
		insecure bool
		want     string
	}{
		"metrics":              {flags: adminConfig{Listen: "0.0.0.0:0"}},
		"profiles":             {flags: adminConfig{Listen: "0.0.0.0:0", Profiles: true}, want: "--pprof exposes"},
		"profiles, insecure":   {flags: adminConfig{Listen: "0.0.0.0:0", Profiles: true}, insecure: true},
		"profiles alone":       {flags: adminConfig{Profiles: true}, want: "needs --admin-listen"},
		"profiles on loopback": {flags: adminConfig{Listen: ":0", Profiles: true}},
		"no address":           {flags: adminConfig{Listen: "nonsense"}, want: "--admin-listen"},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := c.flags.open(t.Context(), c.insecure)
			if (err == nil) != (c.want == "") || (err != nil && !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %v, want %q in it", err, c.want)
			}
			if l != nil {
				l.Close()
			}
		})
	}
}

// Each line is JSON, from the first to the last, also when the start fails.
func TestServeLogsJSONOnly(t *testing.T) {
	s := startServer(t, "--log-format", "json", "--log-level", "info")
	s.call()
	s.stop(nil)
	<-s.done
	if s.err != nil {
		t.Error(s.err)
	}
	var failing bytes.Buffer
	err := run(t.Context(), &failing, "--log-format", "json", "--state-dir", t.TempDir(), "--provider", "nowhere")
	if logged := (LoggedError{}); !errors.As(err, &logged) {
		t.Errorf("%v is not in the log", err)
	}
	for _, c := range []struct{ log, want string }{{s.log(), "serving"}, {s.log(), "stopping"}, {failing.String(), "the server ended"}} {
		var messages []string
		for line := range strings.Lines(c.log) {
			var r struct{ Msg string }
			if err := json.Unmarshal([]byte(line), &r); err != nil {
				t.Errorf("%q: %v", line, err)
			}
			messages = append(messages, r.Msg)
		}
		if !strings.Contains(strings.Join(messages, "\n"), c.want) {
			t.Errorf("no %q in %q", c.want, messages)
		}
	}
}

func TestDurationsAreReadable(t *testing.T) {
	var out bytes.Buffer
	log, err := newLogger("info", "json", &out)
	if err != nil {
		t.Fatal(err)
	}
	log.Info("x", "took", adminStopTime)
	if !strings.Contains(out.String(), `"took":"10s"`) {
		t.Error(out.String())
	}
}

func TestSpecSecret(t *testing.T) {
	dir := t.TempDir()
	var mu sync.Mutex
	seen := make(map[string]int)
	var work sync.WaitGroup
	for range 8 {
		work.Go(func() {
			secret, err := config{Provider: "local", StateDir: dir}.specSecret()
			if err != nil || len(secret) != specSecretBytes {
				t.Errorf("%d bytes, %v", len(secret), err)
			}
			mu.Lock()
			defer mu.Unlock()
			seen[string(secret)]++
		})
	}
	work.Wait()
	if len(seen) != 1 {
		t.Errorf("%d secrets", len(seen))
	}
	if info, err := os.Stat(filepath.Join(dir, "spec-secret")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	if names, _ := filepath.Glob(filepath.Join(dir, ".spec-secret*")); len(names) > 0 {
		t.Errorf("left behind: %v", names)
	}
	for name, c := range map[string]struct {
		config config
		bytes  int
		fails  bool
	}{
		"a file":         {config{Provider: "kubernetes", SpecSecretFile: writeFile(t, "a", "0123456789abcdef")}, 16, false},
		"a short file":   {config{Provider: "kubernetes", SpecSecretFile: writeFile(t, "b", "0123")}, 0, true},
		"no such file":   {config{Provider: "local", StateDir: dir, SpecSecretFile: "/nonexistent"}, 0, true},
		"shared without": {config{Provider: "kubernetes", StateDir: dir}, 0, false},
	} {
		if secret, err := c.config.specSecret(); len(secret) != c.bytes || (err != nil) != c.fails {
			t.Errorf("%s: %d bytes, %v", name, len(secret), err)
		}
	}
}

// The listener for operators does not outlive the server.
func TestServeAdminListenerEnds(t *testing.T) {
	s := startServer(t, "--admin-listen", "127.0.0.1:0")
	_, at, _ := strings.Cut(s.log(), "metrics and health at ")
	at, _, _ = strings.Cut(at, "\n")
	s.stop(nil)
	<-s.done
	var d net.Dialer
	if conn, err := d.DialContext(t.Context(), "tcp", at); err == nil {
		t.Error(errors.Join(errors.New("it still listens"), conn.Close()))
	}
}
