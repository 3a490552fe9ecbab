//go:build docker && buildkit

package e2e

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestSandboxesFromABuildKit needs a buildkitd beside the Docker daemon: BUILDKIT_HOST.
func TestSandboxesFromABuildKit(t *testing.T) {
	need(t)
	path, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatal(err)
	}
	busybox, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	dir, context := buildContext(t, map[string]string{
		"busybox": string(busybox),
		"Dockerfile": `FROM scratch
COPY --chmod=755 busybox /bin/busybox
RUN ["/bin/busybox", "--install", "/bin"]
COPY --chmod=755 <<END /bin/tool
#!/bin/sh
echo "hello from $(basename "\$0")"
END
`,
	})
	loaded := shared.must(t, "build", "--network", "none", "-t", "localhost/buildkit:e2e", context)
	image, _ := buildTwice(t, dir)
	if image.Image != loaded {
		t.Errorf("%+v; %s", image, loaded)
	}
	runTool(t, dir, image, "localhost/buildkit:e2e")
	failed := shared.run("", "build", "--build-arg", "BUILDKIT_SYNTAX=127.0.0.1:1/none", "--save="+dir, context)
	if failed.code != 125 || !strings.Contains(failed.stderr, "127.0.0.1:1/none") || failed.stdout != "" {
		t.Errorf("a build that fails: %+v", failed)
	}
}
