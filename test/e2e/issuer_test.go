package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// issuer is a real OpenID Connect issuer, built from tools/issuer.
type issuer struct {
	t   *testing.T
	url string
	cmd *exec.Cmd
}

// startIssuer starts an issuer at a free port, or where another one was.
func startIssuer(t *testing.T, at string) *issuer {
	t.Helper()
	cmd := exec.Command("issuer", strings.TrimPrefix(at, "http://"))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("%v; make test-e2e builds tools/issuer", err)
	}
	i := &issuer{t: t, cmd: cmd}
	t.Cleanup(i.kill)
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	i.url = strings.TrimSpace(line)
	return i
}

func (i *issuer) kill() {
	_ = i.cmd.Process.Kill()
	_ = i.cmd.Wait()
}

func (i *issuer) post(path string, form url.Values) []byte {
	i.t.Helper()
	req, err := http.NewRequestWithContext(i.t.Context(), http.MethodPost, i.url+path, strings.NewReader(form.Encode()))
	if err != nil {
		i.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.SetBasicAuth("sid1", "verysecret")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		i.t.Fatal(err)
	}
	defer resp.Body.Close()
	body := new(strings.Builder)
	if _, err := bufio.NewReader(resp.Body).WriteTo(body); err != nil || resp.StatusCode != http.StatusOK {
		i.t.Fatal(err, resp.Status, body)
	}
	return []byte(body.String())
}

// token gets a token with these claims, each NAME:VALUE.
func (i *issuer) token(claims ...string) string {
	i.t.Helper()
	var answer struct {
		Token string `json:"access_token"`
	}
	raw := i.post("/oauth/token", url.Values{"grant_type": {"client_credentials"}, "scope": {"openid " + strings.Join(claims, " ")}})
	if err := json.Unmarshal(raw, &answer); err != nil || answer.Token == "" {
		i.t.Fatal(err, string(raw))
	}
	return answer.Token
}

// TestIssuer uses real tokens of a real issuer: tenants and roles by claims, keys that
// rotate under load, and an issuer that is away.
func TestIssuer(t *testing.T) {
	need(t)
	i := startIssuer(t, "127.0.0.1:0")
	dir := t.TempDir()
	config := filepath.Join(dir, "config.yaml")
	text := fmt.Sprintf(`
auth:
  oidc:
  - issuer: %s
    audiences: [sandgate]
    tenant_claim: org
    role_claim: groups
    roles: {devs: user, guests: reader, ops: operator}
`, i.url)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := serve(dir, "--config", config)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { s.Kill() }()
	as := func(token string, args ...string) ran {
		return s.run("", append([]string{"--token", token}, args...)...)
	}
	want := func(got ran, code int, text string) {
		t.Helper()
		if got.code != code || !strings.Contains(got.stdout+got.stderr, text) {
			t.Fatalf("got %+v, want %d and %q", got, code, text)
		}
	}
	user := i.token("org:blue", "groups:devs")
	defer func() { as(user, "rm", "--all", "--yes") }()
	want(as(user, "create", "mine"), 0, "mine")
	want(as(user, "exec", "mine", "-c", "echo secret > /workspace/f; echo done"), 0, "done")
	reader := i.token("org:blue", "groups:guests")
	want(as(reader, "ls"), 0, "mine")
	want(as(reader, "cp", "mine:/workspace/f", "-"), 0, "secret")
	want(as(reader, "exec", "mine", "--", "true"), 125, "CALL_FORBIDDEN")
	want(as(reader, "rm", "mine"), 125, "CALL_FORBIDDEN")
	want(as(i.token("org:red", "groups:devs"), "exec", "mine", "--", "true"), 125, "SANDBOX_NOT_FOUND")
	want(as(i.token("org:blue"), "ls"), 125, "CALL_FORBIDDEN")
	operator := i.token("org:red", "groups:ops")
	want(as(operator, "--tenant", "blue", "ls"), 0, "mine")
	want(as(operator, "--tenant", "blue", "exec", "mine", "--", "true"), 125, "CALL_FORBIDDEN")
	want(as(user, "--tenant", "red", "ls"), 125, "CALL_FORBIDDEN")
	want(as(user[:len(user)-9]+"AAAAAAAAA", "ls"), 125, "CREDENTIALS_INVALID")

	// Keys rotate under load.
	var load sync.WaitGroup
	stop, cancel := context.WithCancelCause(t.Context())
	for range 2 {
		load.Go(func() {
			for stop.Err() == nil {
				if got := as(i.token("org:blue", "groups:devs"), "ls", "--quiet"); got.code != 0 || got.stdout != "mine\n" {
					t.Errorf("while keys rotate: %+v", got)
					return
				}
			}
		})
	}
	for range 3 {
		i.post("/rotate", nil)
		want(as(i.token("org:blue", "groups:devs"), "ls"), 0, "mine")
	}
	cancel(nil)
	load.Wait()
	i.post("/rotate", url.Values{"withdraw": {"1"}})
	fresh := i.token("org:blue", "groups:devs")
	want(as(fresh, "ls"), 0, "mine")
	want(as(user, "ls"), 125, "CREDENTIALS_INVALID")

	// While the issuer is away, known keys count. A server that starts then serves, and
	// refuses what it can't check.
	i.kill()
	want(as(fresh, "ls"), 0, "mine")
	s.Kill()
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	want(as(fresh, "ls"), 125, "AUTHENTICATION_UNAVAILABLE")
	i = startIssuer(t, i.url)
	user = i.token("org:blue", "groups:devs")
	eventually(t, time.Minute, "the issuer's keys", func() bool { return as(user, "ls", "--quiet").stdout == "mine\n" })

	if records, err := os.ReadFile(filepath.Join(dir, "state", "audit.log")); err != nil || !strings.Contains(string(records), fmt.Sprintf(`"issuer":%q,"role":"reader"`, i.url)) || strings.Contains(string(records), user) {
		t.Errorf("the audit log: %v, %.300s", err, records)
	}
	if log := s.log.String(); strings.Contains(log, user) || strings.Contains(log, fresh) {
		t.Error("a token is in the log")
	}
}

// TestTokenFile follows a command while its token expires and is replaced in its file.
func TestTokenFile(t *testing.T) {
	need(t)
	i := startIssuer(t, "127.0.0.1:0")
	dir := t.TempDir()
	config, file := filepath.Join(dir, "config.yaml"), filepath.Join(dir, "token")
	text := fmt.Sprintf("auth:\n  oidc:\n  - {issuer: %s, audiences: [sandgate], tenant_claim: org, clock_skew: 1ms}\n", i.url)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := serve(dir, "--config", config)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Kill()
	renew := func(lifetime string) {
		t.Helper()
		next := filepath.Join(dir, "token.next")
		if err := os.WriteFile(next, []byte(i.token("org:blue", "lifetime:"+lifetime)+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(next, file); err != nil {
			t.Fatal(err)
		}
	}
	renew("5m")
	if got := s.run("", "--token-file", file, "create", "mine"); got.code != 0 {
		t.Fatalf("create: %+v", got)
	}
	defer func() { s.run("", "--token-file", file, "rm", "--all", "--yes") }()
	script := "for n in $(seq 70); do echo $n; sleep 0.1; done"
	done := make(chan ran, 1)
	renew("4s")
	go func() { done <- s.run("", "--token-file", file, "exec", "mine", "-c", script) }()
	eventually(t, time.Minute, "the command", func() bool {
		return strings.Contains(s.run("", "--token-file", file, "ps", "mine").stdout, "seq 70")
	})
	renew("5m")
	var want strings.Builder
	for n := range 70 {
		fmt.Fprintln(&want, n+1)
	}
	if got := <-done; got.code != 0 || got.stdout != want.String() {
		t.Errorf("got %+v", got)
	}
	records, err := os.ReadFile(filepath.Join(dir, "state", "audit.log"))
	if err != nil || strings.Count(string(records), `"operation":"Attach"`) == 0 {
		t.Errorf("the command's stream was not cut: %v, %.300s", err, records)
	}
}
