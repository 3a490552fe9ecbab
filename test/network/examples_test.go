package network

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/sandgate/sandgate/providers/local"
	"github.com/sandgate/sandgate/server"
	"github.com/sandgate/sandgate/server/preview"
	"github.com/sandgate/sandgate/server/secret"
)

// TestAgentsWithANetwork: the agents of examples install a package, clone a private
// repository with a secret that they do not have, and return the URL of the page that
// they have made of it.
func TestAgentsWithANetwork(t *testing.T) {
	upstream := newGuarded(t, hidden)
	const heading = "a heading of the private repository"
	script := `set -e; cd "$1"; git init -q -b main work; cd work; echo "# $2" >README.md; git add README.md
git -c user.name=n -c user.email=n@example.com commit -q -m first; git push -q "$3" main`
	if out, err := exec.Command("/bin/sh", "-c", script, "sh", t.TempDir(), heading, filepath.Join(upstream.repo, "repo.git")).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(hidden), 0o600); err != nil {
		t.Fatal(err)
	}
	store, err := secret.New([]secret.Entry{{Name: "git-token", Tenants: []string{"*"}, Hosts: []string{"git.example"}, File: file}})
	if err != nil {
		t.Fatal(err)
	}
	pages, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := portOf(upstream.Listener.Addr().String())
	b := startChanged(t, "runc", local.ProfileDefault, func(c *server.Config) {
		c.Secrets, c.Roots = store, upstream.roots
		if c.Preview, err = preview.NewURLs(c.SpecSecret, "http", fmt.Sprintf("localhost:%d", portOf(pages.Addr().String())), 0); err != nil {
			t.Fatal(err)
		}
	}, port)
	go func() { _ = b.server.ServePreview(pages) }() // until the testbed stops
	env := append(os.Environ(),
		"SANDGATE_ADDRESS=unix://"+filepath.Join(b.dir, "s.sock"), "PRIVATE=127.0.0.1/32",
		fmt.Sprintf("INDEX=https://packages.example:%d/simple/", port),
		fmt.Sprintf("REPOSITORY=https://git.example:%d/git/repo.git", port))

	python, err := filepath.Abs("../../clients/python/.venv/bin/python")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ language, dir, install, run string }{
		{"Python", "../../examples/python", ":", python + " network_agent.py"},
		{"TypeScript", "../../examples/typescript", "npm run --silent prenetwork", "exec node --import tsx network_agent.ts"},
	} {
		t.Run(c.language, func(t *testing.T) {
			install := exec.Command("/bin/sh", "-c", c.install)
			install.Dir = c.dir
			if out, err := install.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
			defer cancel()
			agent := exec.CommandContext(ctx, "/bin/sh", "-c", "exec 2>&1; "+c.run)
			agent.Dir, agent.Env = c.dir, env
			in, err := agent.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			out, err := agent.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := agent.Start(); err != nil {
				t.Fatal(err)
			}
			url, transcript := returned(out)
			if url == "" {
				t.Fatalf("%v\n%s", agent.Wait(), transcript)
			}
			if got := page(t, url, pages.Addr().String()); got != "<h1>"+heading+"</h1>\n" {
				t.Errorf("the page: %q\n%s", got, transcript)
			}
			boxes := b.list(ctx)
			if len(boxes) != 1 {
				t.Fatalf("sandboxes: %v", boxes)
			}
			b.searchFor(t, b.client.Sandbox(boxes[0].GetSandboxId()), "http.server")
			if err := in.Close(); err != nil {
				t.Error(err)
			}
			rest, _ := io.ReadAll(out)
			if err := agent.Wait(); err != nil {
				t.Errorf("%v\n%s%s", err, transcript, rest)
			}
			if strings.Contains(transcript+string(rest), hidden) {
				t.Error("the transcript has the secret")
			}
			if boxes := b.list(t.Context()); len(boxes) != 0 {
				t.Errorf("left: %v", boxes)
			}
		})
	}
}

// returned reads a transcript until the agent has returned a URL, or to its end.
func returned(out io.Reader) (url, transcript string) {
	answer := regexp.MustCompile(`^agent: The page is at (http\S+)\n$`)
	for r := bufio.NewReader(out); ; {
		line, err := r.ReadString('\n')
		transcript += line
		if found := answer.FindStringSubmatch(line); found != nil || err != nil {
			return strings.Join(found[min(1, len(found)):], ""), transcript
		}
	}
}

// page returns a page below localhost, as a browser finds it on this machine.
func page(t *testing.T, url, address string) string {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}}}
	response, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}
