package e2e

import (
	"os/exec"
	"testing"

	sandgate "github.com/sandgate/sandgate/clients/go"
	"github.com/sandgate/sandgate/test/escape"
)

// harmless are attempts that the kernel allows, with the reason why they do no harm.
var harmless = map[string]map[string]string{
	"socket":          ownAgent,
	"exec":            ownAgent,
	"exec restricted": ownAgent,
	"runsc": {
		"processes: limit the agent":                      ownAgent["processes: limit the agent"],
		"processes: write /proc/1/comm":                   "only a name, in gVisor's own kernel",
		"namespaces: clone3 mnt":                          guest,
		"namespaces: clone3 user":                         guest,
		"devices: open /dev/fuse":                         guest,
		"devices: open /dev/net/tun":                      guest,
		"kernel: io_setup":                                guest,
		"identity: raise capability 13":                   "gVisor takes CAP_NET_RAW out of what is granted, without an error",
		"identity: higher priority":                       guest,
		"identity: be spared by the OOM killer":           guest,
		"sockets: connect to the agent's abstract socket": "gVisor has no Landlock; the agent rejects peers without its secret",
	},
}

const guest = "gVisor's kernel in user space grants it; nothing of the host's kernel is involved"

// A command has its agent's user id: it can kill or limit the agent of its own sandbox
// only, to no gain.
var ownAgent = map[string]string{
	"processes: limit the agent": "its own sandbox's agent, which then serves fewer calls at once",
}

// TestEscape tries to break out of a sandbox of every variant.
func TestEscape(t *testing.T) {
	need(t)
	program := escape.Build(t)
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			if v.tool != "" {
				if _, err := exec.LookPath(v.tool); err != nil {
					t.Skipf("needs %s: %v", v.tool, err)
				}
			}
			s := suiteServer(t, v.flags)
			client, err := sandgate.NewClient(t.Context(), sandgate.WithAddress(s.address))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = client.Close() })
			box, _, err := client.Create(t.Context(), sandgate.CreateRequest{})
			if err != nil {
				t.Fatal(err)
			}
			escape.Run(t, box, program, harmless[v.name])
		})
	}
}
