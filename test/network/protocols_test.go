package network

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh/knownhosts"

	sandgate "github.com/sandgate/sandgate/clients/go"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers/local"
	"github.com/sandgate/sandgate/test/upstream"
)

// TestProgramsThatSpeakNoHTTPReachAllowedNamesOnly: a rule with a port lets ssh, and git by ssh and
// by git's own protocol, out to that name and port, and to no other.
func TestProgramsThatSpeakNoHTTPReachAllowedNamesOnly(t *testing.T) {
	repo := upstream.Repository(t)
	gitPort := portOf(upstream.ServeGit(t, repo))
	sshAddress, hostKey := upstream.ServeSSH(t, repo)
	sshPort := portOf(sshAddress)
	for _, runtime := range []string{"runc", "runsc"} {
		t.Run(runtime, func(t *testing.T) {
			b := start(t, runtime, local.ProfileDefault, gitPort, sshPort)
			box := b.create(&sandboxv1.EgressRule{Hosts: []string{"git.example"}, Cidrs: []string{"127.0.0.1/32"}, Ports: []uint32{gitPort, sshPort}})
			known := knownhosts.Line([]string{fmt.Sprintf("git.example:%d", sshPort)}, hostKey)
			if _, err := box.Write(t.Context(), "/workspace/known", []byte(known+"\n"), sandgate.WriteRequest{}); err != nil {
				t.Fatal(err)
			}
			const client = "ssh -F none -o BatchMode=yes -o UserKnownHostsFile=/workspace/known "
			login := fmt.Sprintf(client+"-p %d anyone@", sshPort)
			for _, c := range []struct{ name, script, want string }{
				{"ssh", login + "git.example echo out", "out"},
				{"ssh, bulk both ways", "head -c 3000000 /dev/urandom >in; " + login + "git.example cat <in | cmp - in && echo same", "same"},
				{"git by ssh", fmt.Sprintf("GIT_SSH_COMMAND='%s' git clone -q ssh://anyone@git.example:%d/repo.git one && cat one/file", client, sshPort), "content"},
				{"git's own protocol", fmt.Sprintf("git clone -q git://git.example:%d/repo.git two && cat two/file", gitPort), "content"},
			} {
				if got, code := sh(t, box, c.script); got != c.want || code != 0 {
					t.Errorf("%s: %q, exit code %d", c.name, got, code)
				}
			}
			for _, c := range []struct{ name, script, want string }{
				{"ssh, other name", login + "evil.example echo out", "Could not resolve hostname"},
				{"ssh, other port", client + fmt.Sprintf("-o ConnectTimeout=20 -p %d anyone@git.example echo out", sshPort+1), "git.example"},
				{"ssh, the address", client + fmt.Sprintf("-o ConnectTimeout=20 -o StrictHostKeyChecking=no -p %d anyone@192.0.2.7 echo out", sshPort), "192.0.2.7"},
				{"git, other name", fmt.Sprintf("git clone -q git://evil.example:%d/repo.git three", gitPort), "unable to look up evil.example"},
			} {
				if got, code := sh(t, box, c.script); !strings.Contains(got, c.want) || code == 0 {
					t.Errorf("refused, %s: %q, exit code %d", c.name, got, code)
				}
			}
		})
	}
}
