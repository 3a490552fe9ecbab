//go:build linux

package local_test

import (
	"os/exec"
	"testing"

	"github.com/sandgate/sandgate/providers/providertest"
)

// TestProgramsStartThreadsOnEachKernel: programs start threads, on each kernel.
func TestProgramsStartThreadsOnEachKernel(t *testing.T) {
	for _, runtime := range []string{"runc", "runsc"} {
		t.Run(runtime, func(t *testing.T) {
			p := opened(t, testConfigOf(t, runtime))
			createPlain(t, p, "threads")
			got := providertest.Shell(t, p, "threads", `python3 -c '
import threading
done = []
threads = [threading.Thread(target=done.append, args=(n,)) for n in range(20)]
for t in threads: t.start()
for t in threads: t.join()
print(len(done))
'`)
			if got != "20\n" {
				t.Errorf("Python's threads: %q", got)
			}
			if node, err := exec.LookPath("node"); err == nil && (node == "/usr/bin/node" || node == "/usr/local/bin/node") {
				got := providertest.Shell(t, p, "threads", `node -e '
const { Worker } = require("worker_threads");
new Worker("require(\"worker_threads\").parentPort.postMessage(42)", { eval: true }).on("message", console.log);
'`)
				if got != "42\n" {
					t.Errorf("Node's threads: %q", got)
				}
			}
		})
	}
}
