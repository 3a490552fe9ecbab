//go:build docker

package e2e

import (
	"encoding/json"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"

	sandgate "github.com/sandgate/sandgate/clients/go"
	"github.com/sandgate/sandgate/test/daemon"
)

// TestSandboxesFromABuild needs a daemon, which "make test-docker" starts: sandboxes of
// the provider docker have the image itself, those of local its archive or, pushed, its
// name with a digest.
func TestSandboxesFromABuild(t *testing.T) {
	need(t)
	dir, context := buildContext(t, map[string]string{
		"Dockerfile": "FROM " + os.Getenv("SANDGATE_DOCKER_IMAGE") + "\nARG GREETING\nCOPY tool /usr/bin/tool\nRUN chmod 755 /usr/bin/tool\nENV GREETING=$GREETING\n",
		"tool":       "#!/bin/sh\necho \"$GREETING from $(basename \"$0\")\"\n",
	})
	first, text := buildTwice(t, dir, "--build-arg", "GREETING=hello", "-t", "localhost/tools:e2e")
	if text := strings.Fields(text); len(text) != 2 || text[0] != first.Archive || text[1] != first.Pushed {
		t.Errorf("it prints %q for %+v", text, first)
	}
	runTool(t, dir, first, "localhost/tools:e2e")
	byClient, err := sandgate.BuildImage(t.Context(), sandgate.BuildRequest{
		Context: context, Network: "none", BuildArgs: map[string]string{"GREETING": "hello"},
		Program: daemon.Program(), OnOutput: func(line string) { t.Error(line) },
	})
	if err != nil || byClient != first.Image {
		t.Errorf("the client has built %q: %v", byClient, err)
	}
	failed := shared.run("", "build", "--network", "none", "--build-arg", "GREETING=bye", filepath.Join(dir, "absent"))
	if failed.code != 125 || strings.Count(failed.stderr, "\n") != 1 || failed.stdout != "" {
		t.Errorf("without a context: %+v", failed)
	}
}

// built is what "sandgate build" prints as JSON.
type built struct {
	Image, ID, Archive, Pushed string
	Reused                     bool
}

// buildContext makes a directory for a test, and in it the context of a build.
func buildContext(t *testing.T, files map[string]string) (dir, context string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "sandgate-build-") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	context = filepath.Join(dir, "context")
	if err := os.Mkdir(context, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(context, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir, context
}

// buildTwice builds the context, saves the image and pushes it, and expects the second
// build to use the first. It also returns what a build prints as text.
func buildTwice(t *testing.T, dir string, flags ...string) (first built, text string) {
	t.Helper()
	store := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(store.Close)
	build := append([]string{"build", "--network", "none", "--save=" + filepath.Join(dir, "archives"), "--push", strings.TrimPrefix(store.URL, "http://") + "/team/tools", filepath.Join(dir, "context")}, flags...)
	var second built
	for _, b := range []*built{&first, &second} {
		if err := json.Unmarshal([]byte(shared.must(t, append(build, "--output", "json")...)), b); err != nil {
			t.Fatal(err)
		}
	}
	if first.Reused || !second.Reused || first.Image != second.Image || first.Pushed != second.Pushed || first.Archive != second.Archive {
		t.Errorf("%+v, then %+v", first, second)
	}
	return first, shared.must(t, build...)
}

// runTool runs the image's tool, by the image's names at the provider docker, one of
// which is tag, and at local.
func runTool(t *testing.T, dir string, image built, tag string) {
	t.Helper()
	local, err := serve(filepath.Join(dir, "local"))
	if err != nil {
		t.Fatal(err)
	}
	docker, err := serve(filepath.Join(dir, "docker"), "--provider", "docker", "--docker-image", image.Image)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		on    *server
		image string
	}{{docker, image.Image}, {docker, tag}, {local, image.Archive}, {local, image.Pushed}} {
		if got := c.on.must(t, "run", "--image", c.image, "--", "tool"); got != "hello from tool" {
			t.Errorf("%s prints %q", c.image, got)
		}
	}
	for _, s := range []*server{local, docker} {
		if err := s.stop(); err != nil {
			t.Error(err)
		}
	}
}
