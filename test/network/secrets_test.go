package network

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	sandgate "github.com/sandgate/sandgate/clients/go"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers/local"
	"github.com/sandgate/sandgate/server"
	"github.com/sandgate/sandgate/server/secret"
)

const (
	hidden      = "tok-5f0c2e9d417b48a6b1c3"
	rotated     = "tok-a91e44d07c6f4b52834d"
	placeholder = "sandgate-placeholder-of-the-key"
)

// secretBed is a server with the secret "token", its upstreams, and a sandbox.
type secretBed struct {
	*testbed
	upstream *guarded
	plain    *httptest.Server
	file     string // of the secret
	port     uint32
	box      *sandgate.Sandbox
}

func startSecrets(t *testing.T, runtime string) *secretBed {
	t.Helper()
	s := &secretBed{upstream: newGuarded(t, hidden), file: filepath.Join(t.TempDir(), "token")}
	s.plain = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "got ", r.Header.Get("Authorization"))
	}))
	t.Cleanup(s.plain.Close)
	if err := os.WriteFile(s.file, []byte(hidden+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	store, err := secret.New([]secret.Entry{
		{Name: "token", Tenants: []string{"default"}, Hosts: []string{"*.example"}, File: s.file},
		{Name: "theirs", Tenants: []string{"other"}, Hosts: []string{"*.example"}, File: s.file},
	})
	if err != nil {
		t.Fatal(err)
	}
	s.port = portOf(s.upstream.Listener.Addr().String())
	plain := portOf(s.plain.Listener.Addr().String())
	s.testbed = startChanged(t, runtime, local.ProfileDefault, func(c *server.Config) {
		c.Secrets, c.Roots = store, s.upstream.roots
	}, s.port, plain)
	ports := []uint32{s.port, plain}
	s.box = s.create(
		&sandboxv1.EgressRule{Hosts: []string{"git.example"}, Ports: ports, Secret: &sandboxv1.EgressSecret{Name: "token", User: "x-access-token"}},
		&sandboxv1.EgressRule{Hosts: []string{"api.example"}, Ports: ports, Secret: &sandboxv1.EgressSecret{Name: "token"}},
		&sandboxv1.EgressRule{Hosts: []string{"api.example"}, Ports: ports, Secret: &sandboxv1.EgressSecret{Name: "token", Placeholder: placeholder}},
		&sandboxv1.EgressRule{Hosts: []string{"other.example"}, Ports: ports, Methods: []string{"GET"}},
		&sandboxv1.EgressRule{Cidrs: []string{"127.0.0.1/32"}, Ports: ports},
	)
	return s
}

// url returns a URL of the upstream.
func (s *secretBed) url(host, path string) string {
	return fmt.Sprintf("https://%s:%d%s", host, s.port, path)
}

const plainEnv = "env -u HTTP_PROXY -u HTTPS_PROXY -u ALL_PROXY -u http_proxy -u https_proxy -u all_proxy -u NODE_USE_ENV_PROXY "

// TestProgramsUseSecretsThatTheyDoNotHave: ordinary programs use a secret that they do not have.
func TestProgramsUseSecretsThatTheyDoNotHave(t *testing.T) {
	for _, runtime := range []string{"runc", "runsc"} {
		t.Run(runtime, func(t *testing.T) {
			s := startSecrets(t, runtime)
			program := buildGo(t, "./goclient")
			if _, err := s.box.Write(t.Context(), "/workspace/goclient", program, sandgate.WriteRequest{}); err != nil {
				t.Fatal(err)
			}
			check, away := s.url("api.example", "/check"), s.url("api.example", "/away")
			plain := strings.Replace(s.plain.URL, "127.0.0.1", "api.example", 1)
			cases := []struct{ name, script, want string }{
				{"curl, HTTP/1.1", "curl -sS --http1.1 " + check, "^ok HTTP/1.1$"},
				{"curl, HTTP/2", "curl -sS --http2 " + check, "^ok HTTP/2.0$"},
				{"curl, no proxy", plainEnv + "curl -sS " + check, "^ok"},
				{"curl, SOCKS", "curl -sS -x socks5h://127.0.0.1:3128 " + check, "^ok"},
				{"its own credentials", "curl -sS -H 'Authorization: Bearer mine' " + check, "^ok"},
				{"Connection: Authorization", "curl -sS --http1.1 -H 'Connection: Authorization' " + check, "the secret is missing"},
				{"a placeholder", "curl -sS -H 'X-Api-Key: " + placeholder + "' " + s.url("api.example", "/key"), "^true$"},
				{"a placeholder in the query", "curl -sS '" + s.url("api.example", "/key?k="+placeholder) + "'", "headers only"},
				{"python", `python3 -c 'import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1]).read().decode())' ` + check, "^ok"},
				{"requests", `python3 -c 'import sys
try: import requests
except ImportError: from pip._vendor import requests
print(requests.get(sys.argv[1]).text)' ` + check, "^ok"},
				{"node", `node -e 'fetch(process.argv[1]).then(r => r.text()).then(t => console.log(t)).catch(e => console.log(String(e.cause || e)))' ` + check, "^ok"},
				{"go", "chmod +x goclient && ./goclient " + check, "^ok"},
				{"go, no proxy", plainEnv + "./goclient " + check, "^ok"},
				{"pip", "pip download -q --no-cache-dir --retries 0 --no-deps -d p -i " + s.url("git.example", "/simple/") + " demo && ls p", `demo-1.0-py3-none-any.whl$`},
				{"git push", "git init -q -b main r && cd r && echo one >file && git add file && git -c user.name=n -c user.email=n@example.com commit -q -m m && git push -q " +
					s.url("git.example", "/git/repo.git") + " main && git ls-remote " + s.url("git.example", "/git/repo.git"), "refs/heads/main"},
				{"git clone, no proxy", plainEnv + "git clone -q " + s.url("git.example", "/git/repo.git") + " c && cat c/file", "^one$"},
				{"a redirect to another host", "curl -sS -L " + away, "^other$"},
				{"without TLS", "curl -sS " + plain, "use https"},
				{"100-continue", "head -c 3000000 /dev/zero | curl -sS --http1.1 -H 'Expect: 100-continue' -T - " + s.url("api.example", "/size"), "^3000000 <nil> true$"},
				{"a large body of HTTP/2", "head -c 3000000 /dev/zero | curl -sS --http2 -T - " + s.url("api.example", "/size"), "^3000000 <nil> true$"},
				{"an event, at once", `python3 -c 'import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1]).readline().decode())' ` + s.url("api.example", "/events"), "^data: first$"},
				{"a header that echoes", "curl -sS -i --http1.1 --raw " + s.url("api.example", "/echo"), `(?s)103 Early Hints.*Echo: \[redacted\].*200 OK.*Echo: \[redacted\].*Echo-At-End: \[redacted\]`},
				{"another Host", "curl -sS -H 'Host: other.example' " + check, "it must be for api.example"},
				{"another Host, HTTP/1.1", "curl -sS --http1.1 -H 'Host: other.example' " + check, "it must be for api.example"},
				{"TRACE", "curl -sS -X TRACE " + check, "would have the secret"},
				{"a method that no rule allows", "curl -sS -X POST " + s.url("other.example", "/"), "no rule of the sandbox allows the request"},
				{"the template's hosts keep their authorities", `test "$(grep -c BEGIN "$SSL_CERT_FILE")" -gt 2; echo $?`, "^0$"},
			}
			for _, c := range cases {
				if runtime == "runsc" && !slices.Contains([]string{"curl, HTTP/2", "node", "go", "go, no proxy", "git push", "a redirect to another host"}, c.name) {
					continue // The others do not depend on the runtime, and are slow there.
				}
				if got, code := sh(t, s.box, c.script); !regexp.MustCompile(c.want).MatchString(strings.ReplaceAll(got, "\r", "")) || strings.Contains(got, hidden) {
					t.Errorf("%s: %q, exit code %d", c.name, got, code)
				}
			}
			if seen := s.upstream.seen.Load(); seen == nil || *seen != "" {
				t.Errorf("after a redirect, another host got %v", seen)
			}
			if runtime == "runc" { // gVisor has the memory of programs in one file of gigabytes
				s.findNowhere(t)
			}

			if err := os.WriteFile(s.file, []byte(rotated), 0o600); err != nil {
				t.Fatal(err)
			}
			value := rotated
			s.upstream.secret.Store(&value)
			if got, _ := sh(t, s.box, "curl -sS "+check); !strings.HasPrefix(got, "ok") {
				t.Errorf("the rotated secret: %q", got)
			}

			// A program that has read the certificate before trusts a restarted server.
			if got, code := sh(t, s.box, "cp $SSL_CERT_FILE kept.pem"); code != 0 {
				t.Fatal(got)
			}
			id := s.box.ID()
			s.stop()
			s.serve()
			if got, _ := sh(t, s.client.Sandbox(id), "curl -sS --cacert kept.pem "+check); !strings.HasPrefix(got, "ok") {
				t.Errorf("after a restart: %q", got)
			}
		})
	}
}

// findNowhere looks for the secret in the memory of all processes of the sandbox,
// the agent's included, in their environments, and in the sandbox's files. A
// program that has used the secret is running.
func (s *secretBed) findNowhere(t *testing.T) {
	t.Helper()
	script := `python3 -c '
import http.client, os, ssl, sys, time
c = http.client.HTTPSConnection("api.example", int(sys.argv[1]), context=ssl.create_default_context())
c.request("GET", "/echo")
r = c.getresponse()
kept = r.read(), r.getheaders()
open("ready", "w").close()
time.sleep(600)' ` + fmt.Sprint(s.port) + ` >/dev/null 2>&1 &
i=0; while [ ! -e ready ] && [ $i -lt 600 ]; do sleep 0.05; i=$((i+1)); done; test -e ready`
	if got, code := sh(t, s.box, script); code != 0 {
		t.Fatalf("the program that stays: %s", got)
	}
	s.searchFor(t, s.box, "body-of-the-echo")
}

// searchFor looks for the secret in a sandbox. Its processes have the marker in their
// memory.
func (b *testbed) searchFor(t *testing.T, box *sandgate.Sandbox, marker string) {
	t.Helper()
	encoded := base64.RawStdEncoding.EncodeToString([]byte("x-access-token:" + hidden))
	forms, found := [][]byte{[]byte(hidden), []byte(encoded)}, false
	for _, pid := range b.processes(t) {
		for name, content := range memory(t, pid) {
			found = found || bytes.Contains(content, []byte(marker))
			for _, form := range forms {
				if bytes.Contains(content, form) {
					t.Errorf("the secret is in %s", name)
				}
			}
		}
	}
	if !found {
		t.Errorf("the memory was not searched: %q is not found", marker)
	}
	if got, _ := sh(t, box, "grep -r -l -e "+hidden+" -e "+encoded+" /workspace /home /tmp /var/tmp /dev/shm /run 2>/dev/null"); got != "" {
		t.Errorf("the secret is in files: %s", got)
	}
}

// processes returns the sandbox's processes, as this machine numbers them.
func (b *testbed) processes(t *testing.T) []int {
	t.Helper()
	var pids []int
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() != "cgroup.procs" || !strings.Contains(path, filepath.Base(b.dir)) {
			return nil
		}
		content, _ := os.ReadFile(path)
		for _, field := range strings.Fields(string(content)) {
			if pid, err := strconv.Atoi(field); err == nil {
				pids = append(pids, pid)
			}
		}
		return nil
	})
	if len(pids) < 2 {
		t.Fatalf("processes: %v", pids)
	}
	return pids
}

// memory returns what can be read of a process: its environment and its private
// mappings.
func memory(t *testing.T, pid int) map[string][]byte {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/", pid)
	found := map[string][]byte{}
	environment, _ := os.ReadFile(dir + "environ")
	found[dir+"environ"] = environment
	maps, err := os.ReadFile(dir + "maps")
	mem, errOpen := os.Open(dir + "mem")
	if err != nil || errOpen != nil {
		return found // It has ended.
	}
	defer func() { _ = mem.Close() }()
	for line := range strings.Lines(string(maps)) {
		span, rest, _ := strings.Cut(line, " ")
		from, to, _ := strings.Cut(span, "-")
		begin, err1 := strconv.ParseUint(from, 16, 64)
		end, err2 := strconv.ParseUint(to, 16, 64)
		if err1 != nil || err2 != nil || !strings.HasPrefix(rest, "rw-p") || end-begin > 1<<30 {
			continue
		}
		content := make([]byte, end-begin)
		n, _ := io.ReadFull(io.NewSectionReader(mem, int64(begin), int64(end-begin)), content)
		if n > 0 {
			found[fmt.Sprintf("%s (%s)", dir, strings.TrimSpace(line))] = content[:n]
		}
	}
	return found
}

// TestRuleCannotUseAForeignSecret: a rule cannot use another tenant's secret, an unknown
// one, or one for hosts that must not get it.
func TestRuleCannotUseAForeignSecret(t *testing.T) {
	s := startSecrets(t, "runc")
	for want, rule := range map[string]*sandboxv1.EgressRule{
		"there is no secret theirs":     {Hosts: []string{"a.example"}, Ports: []uint32{s.port}, Secret: &sandboxv1.EgressSecret{Name: "theirs"}},
		"there is no secret other":      {Hosts: []string{"a.example"}, Ports: []uint32{s.port}, Secret: &sandboxv1.EgressSecret{Name: "other"}},
		"may not be sent to *;":         {Hosts: []string{"*"}, Ports: []uint32{s.port}, Secret: &sandboxv1.EgressSecret{Name: "token"}},
		"may not be sent to evil.test;": {Hosts: []string{"evil.test"}, Ports: []uint32{s.port}, Secret: &sandboxv1.EgressSecret{Name: "token"}},
		"over TLS only":                 {Hosts: []string{"a.example"}, Ports: []uint32{80}, Secret: &sandboxv1.EgressSecret{Name: "token"}},
		"a secret needs hosts":          {Cidrs: []string{"127.0.0.1/32"}, Secret: &sandboxv1.EgressSecret{Name: "token"}},
		"cannot carry a secret":         {Hosts: []string{"a.example"}, Secret: &sandboxv1.EgressSecret{Name: "token", Header: "host"}},
	} {
		_, err := s.client.Update(t.Context(), s.box.ID(), sandgate.UpdateRequest{Network: &sandgate.Network{Allow: []*sandboxv1.EgressRule{rule}}})
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "network.allow[0]") {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	info, err := s.client.ServerInfo(t.Context())
	if err != nil || len(info.GetSecrets()) != 1 || info.GetSecrets()[0].GetName() != "token" || info.GetSecrets()[0].GetSource() != "file" {
		t.Errorf("listed: %v, %v", info.GetSecrets(), err)
	}
}

// TestAddedSecretWorksForTheNextCommand: a rule that is added to a live sandbox works for the next
// command, and one that is removed ends the use.
func TestAddedSecretWorksForTheNextCommand(t *testing.T) {
	s := startSecrets(t, "runc")
	loopback := &sandboxv1.EgressRule{Cidrs: []string{"127.0.0.1/32"}, Ports: []uint32{s.port}}
	box := s.create(loopback)
	if got, _ := sh(t, box, "env | grep -c egress-"); got != "0" {
		t.Errorf("variables without a rule: %s", got)
	}
	check := "curl -sS " + s.url("api.example", "/check")
	rule := &sandboxv1.EgressRule{Hosts: []string{"api.example"}, Ports: []uint32{s.port}, Secret: &sandboxv1.EgressSecret{Name: "token"}}
	for _, c := range []struct {
		rules []*sandboxv1.EgressRule
		want  string
	}{{[]*sandboxv1.EgressRule{loopback, rule}, "ok"}, {[]*sandboxv1.EgressRule{loopback}, "403"}} {
		if _, err := s.client.Update(t.Context(), box.ID(), sandgate.UpdateRequest{Network: &sandgate.Network{Allow: c.rules}}); err != nil {
			t.Fatal(err)
		}
		if got, _ := sh(t, box, check); !strings.Contains(got, c.want) {
			t.Errorf("got %q, want %s", got, c.want)
		}
	}
}

func buildGo(t *testing.T, pkg string) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "program")
	build := exec.Command("go", "build", "-o", path, pkg)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	program, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return program
}
