//go:build docker

package network

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers/docker"
	"github.com/sandgate/sandgate/test/upstream"
)

// TestNetworkConformanceOnDocker needs a daemon, which "make test-docker" starts.
func TestNetworkConformanceOnDocker(t *testing.T) {
	for _, c := range []struct {
		name      string
		transport docker.Transport
		options   string
	}{
		{"socket", docker.TransportSocket, `{}`}, {"exec", docker.TransportExec, `{}`}, {"gvisor", docker.TransportExec, `{"runtime": "runsc"}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			open := onDocker(os.Getenv("SANDGATE_DOCKER_IMAGE"), c.transport)
			port := freePort(t)
			certificate, change := conformable(t, port)
			conform(t, startWith(t, json.RawMessage(c.options), change, open, port), port, certificate)
			if c.name == "gvisor" {
				return // its transport is exec's
			}
			s, ca := upstream.Site(t)
			port = portOf(s.Listener.Addr().String())
			t.Run("restart", func(t *testing.T) {
				restart(t, startWith(t, json.RawMessage(c.options), nil, open, port), port, ca)
			})
		})
	}
}

// onDocker opens a provider of the daemon at DOCKER_HOST.
func onDocker(image string, transport docker.Transport) opener {
	return func(ctx context.Context, dir, agent string, logger *slog.Logger) (substrate, error) {
		return docker.New(ctx, docker.Config{
			StateDir: filepath.Join(dir, "state"), Image: image, Transport: transport,
			Agent: func(string) ([]byte, error) { return os.ReadFile(agent) }, Logger: logger,
		})
	}
}

// TestInstallersInTheUserlandImage needs a daemon with the image of deploy/userland, which
// "make full" builds: an ordinary user finds the programs that it promises, and installs
// as in a local sandbox.
func TestInstallersInTheUserlandImage(t *testing.T) {
	index := upstream.Packages(t)
	port := portOf(index.Listener.Addr().String())
	b := startWith(t, nil, nil, onDocker(os.Getenv("SANDGATE_USERLAND_IMAGE"), docker.TransportAuto), port)
	box := b.create(&sandboxv1.EgressRule{Hosts: []string{"index.example"}, Ports: []uint32{port}}, &sandboxv1.EgressRule{Cidrs: []string{"127.0.0.0/8"}, Ports: []uint32{port}})
	for _, c := range []struct{ script, want string }{
		{"for p in bash curl file git jq less make node npm patch pip python python3 rg rsync sqlite3 ssh tree unzip uv wget xz zip; do command -v $p >/dev/null || echo no $p; done", ""},
		{"printf 'int main(){return 0;}' >a.c && cc a.c -o a && ./a && cp a.c b.cc && g++ b.cc -o b && ./b", ""},
		{"echo $HOME; id -un; locale -a >/dev/null; python3 -c 'import sys; print(sys.stdout.encoding)'", "/home/sandbox\nsandbox\nutf-8"},
		// For packages that have C in them.
		{"python3 -c 'import sysconfig, os; print(os.path.exists(sysconfig.get_path(\"include\") + \"/Python.h\"))'", "True"},
	} {
		if got, code := sh(t, box, c.script); code != 0 || got != c.want {
			t.Errorf("%s: exit code %d, %q", c.script, code, got)
		}
	}
	install(t, box, "proxy", fmt.Sprintf("http://index.example:%d", port), "/etc/npmrc")
}

// TestLiteralsOnDocker: programs without a proxy reach the addresses of CIDR rules by
// IPv4, also after a suspension, whose container is another.
func TestLiteralsOnDocker(t *testing.T) {
	l, change := serveLiterals(t)
	l.v6 = netip.Addr{}
	l.testbed = startWith(t, nil, change, onDocker(os.Getenv("SANDGATE_DOCKER_IMAGE"), docker.TransportAuto), l.port)
	l.expectDescription(true) // with gVisor, and by IPv6
	l.reach(t)
	l.changeRules(t)
	box := l.create(l.allow(l.v4.String()))
	if _, err := l.client.Suspend(t.Context(), box.ID()); err != nil {
		t.Fatal(err)
	}
	if _, err := l.client.Resume(t.Context(), box.ID()); err != nil {
		t.Fatal(err)
	}
	box = l.client.Sandbox(box.ID())
	l.expect(box, "after a suspension", l.get(l.v4), "content", 0)
}
