//go:build linux

package local_test

import (
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/local"
	"github.com/sandgate/sandgate/providers/providertest"
)

// TestNothingOfTheHostShows: a command finds neither the names of sandboxes, nor
// a socket of the agent, nor the server's keyring, nor the agent's executable.
func TestNothingOfTheHostShows(t *testing.T) {
	for _, transport := range []local.Transport{local.TransportSocket, local.TransportExec} {
		t.Run(string(transport), func(t *testing.T) {
			config := testConfig(t)
			config.Transport = transport
			p := open(t, config)
			defer closeProvider(t, p)
			spec := providers.Spec{Hash: "h", Network: providers.NetworkNone, Resources: local.DefaultResources()}
			if _, err := providertest.Create(t.Context(), p, "hidden", spec); err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := p.Delete(t.Context(), "hidden", providers.Condition{}); err != nil {
					t.Error(err)
				}
			}()
			sysfs := func() string {
				return providertest.Shell(t, p, "hidden", "cat /sys/block/loop*/loop/backing_file 2>/dev/null; true")
			}
			if got := sysfs(); strings.Contains(got, config.StateDir) || strings.Contains(got, "hidden") {
				t.Errorf("/sys shows %q", got)
			}
			if got := providertest.Shell(t, p, "hidden", "cat /proc/net/unix"); transport == local.TransportSocket && strings.Contains(got, "@sandgate") {
				t.Errorf("the agent listens at a name:\n%s", got)
			}
			if got := providertest.Shell(t, p, "hidden", "cat /.sandgate/agent >/dev/null 2>&1 || echo refused; head -c1 /proc/1/exe >/dev/null 2>&1 || echo refused"); transport == local.TransportExec && got != "refused\nrefused\n" {
				t.Errorf("a command can read the agent's executable: %q", got)
			}
			// Root of its user namespace owns it, and the kernel shows it to no other.
			cat := exec.CommandContext(t.Context(), "cat", "/proc/keys")
			cat.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: rootInside(t, local.FirstProcess(t, p, "hidden"))}}
			keys, err := cat.Output()
			if err == nil && !strings.Contains(string(keys), "_ses.hidden") {
				t.Errorf("the sandbox has no session keyring of its own:\n%s", keys)
			}
		})
	}
}
