//go:build docker && buildkit

package e2e

import (
	"encoding/json"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
)

// TestSandboxesFromABuildKit needs a buildkitd beside the Docker daemon: BUILDKIT_HOST.
func TestSandboxesFromABuildKit(t *testing.T) {
	need(t)
	dir, err := os.MkdirTemp("", "sandgate-build-") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	context := filepath.Join(dir, "context")
	if err := os.Mkdir(context, 0o755); err != nil {
		t.Fatal(err)
	}
	path, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatal(err)
	}
	busybox, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"busybox": string(busybox),
		"Dockerfile": `FROM scratch
COPY --chmod=755 busybox /bin/busybox
RUN ["/bin/busybox", "--install", "/bin"]
COPY --chmod=755 <<END /bin/tool
#!/bin/sh
echo "hello from $(basename "\$0")"
END
`,
	} {
		if err := os.WriteFile(filepath.Join(context, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	store := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer store.Close()
	loaded := shared.must(t, "build", "--network", "none", "-t", "localhost/buildkit:e2e", context)
	build := []string{"build", "--network", "none", "--save=" + filepath.Join(dir, "archives"), "--push", strings.TrimPrefix(store.URL, "http://") + "/team/tools", "--output", "json", context}
	var first, second struct {
		Image, ID, Archive, Pushed string
		Reused                     bool
	}
	if err := json.Unmarshal([]byte(shared.must(t, build...)), &first); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(shared.must(t, build...)), &second); err != nil {
		t.Fatal(err)
	}
	if first.Reused || !second.Reused || first.Image != loaded || second.Image != loaded || first.Pushed != second.Pushed || first.Archive != second.Archive {
		t.Errorf("%+v, then %+v; %s", first, second, loaded)
	}
	local, err := serve(filepath.Join(dir, "local"))
	if err != nil {
		t.Fatal(err)
	}
	docker, err := serve(filepath.Join(dir, "docker"), "--provider", "docker", "--docker-image", loaded)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		on    *server
		image string
	}{{docker, loaded}, {docker, "localhost/buildkit:e2e"}, {local, first.Archive}, {local, first.Pushed}} {
		if got := c.on.must(t, "run", "--image", c.image, "--", "tool"); got != "hello from tool" {
			t.Errorf("%s prints %q", c.image, got)
		}
	}
	for _, s := range []*server{local, docker} {
		if err := s.stop(); err != nil {
			t.Error(err)
		}
	}
	failed := shared.run("", "build", "--build-arg", "BUILDKIT_SYNTAX=127.0.0.1:1/none", "--save="+dir, context)
	if failed.code != 125 || !strings.Contains(failed.stderr, "127.0.0.1:1/none") || failed.stdout != "" {
		t.Errorf("a build that fails: %+v", failed)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Error(err)
	}
}
