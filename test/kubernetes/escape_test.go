package kubernetes

import (
	"testing"

	sandgate "github.com/sandgate/sandgate/clients/go"
	"github.com/sandgate/sandgate/server"
	"github.com/sandgate/sandgate/test/escape"
)

const profile = "the runtime's default profile allows it; a newer one may not"
const shown = "the runtime's masks leave it; it names disks of the node, not of sandboxes"

// grantedByRuntime are attempts that a pod's runtime grants, and why.
var grantedByRuntime = map[string]string{
	"sockets: family 40 stream":                                               profile,
	"kernel: io_uring_setup":                                                  profile,
	"kernel: io_setup":                                                        profile,
	"kernel: see disks in /proc/diskstats":                                    shown,
	"kernel: see disks in /proc/partitions":                                   shown,
	"kernel: see disks in /sys/class/block/loop0/uevent":                      shown,
	"kernel: see disks in /sys/block/loop0/loop/backing_file":                 shown,
	"kernel: see disks in /sys/devices/virtual/block/loop0/loop/backing_file": shown,
	"kernel: see disks in /sys/dev/block/7:0/uevent":                          shown,
	"processes: limit the agent":                                              "its own sandbox's agent, which then serves fewer calls at once",
}

// TestEscape tries to break out of a pod from inside of it.
func TestEscape(t *testing.T) {
	client := serve(t, server.Config{Provider: newRawHarness(t).Provider})
	box, _, err := client.Create(limit(t), sandgate.CreateRequest{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = box.Delete(limit(t)) })
	escape.Run(t, box, escape.Build(t), grantedByRuntime)
}
