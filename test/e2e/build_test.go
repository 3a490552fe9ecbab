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
	dir, err := os.MkdirTemp("", "sandgate-build-") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	context := filepath.Join(dir, "context")
	if err := os.Mkdir(context, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"Dockerfile": "FROM " + os.Getenv("SANDGATE_DOCKER_IMAGE") + "\nARG GREETING\nCOPY tool /usr/bin/tool\nRUN chmod 755 /usr/bin/tool\nENV GREETING=$GREETING\n",
		"tool":       "#!/bin/sh\necho \"$GREETING from $(basename \"$0\")\"\n",
	} {
		if err := os.WriteFile(filepath.Join(context, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	store := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer store.Close()
	build := []string{"build", "--network", "none", "--build-arg", "GREETING=hello", "--save=" + filepath.Join(dir, "archives"), "--push", strings.TrimPrefix(store.URL, "http://") + "/team/tools", "-t", "localhost/tools:e2e", "--output", "json", context}
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
	if first.Reused || !second.Reused || first.Image != second.Image || first.Pushed != second.Pushed || first.Archive != second.Archive {
		t.Errorf("%+v, then %+v", first, second)
	}
	if text := strings.Fields(shared.must(t, append(build[:len(build)-3:len(build)-3], context)...)); len(text) != 2 || text[0] != first.Archive || text[1] != first.Pushed {
		t.Errorf("it prints %q for %+v", text, first)
	}
	local, err := serve(filepath.Join(dir, "local"))
	if err != nil {
		t.Fatal(err)
	}
	docker, err := serve(filepath.Join(dir, "docker"), "--provider", "docker", "--docker-image", first.Image)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		on    *server
		image string
	}{{docker, first.Image}, {docker, "localhost/tools:e2e"}, {local, first.Archive}, {local, first.Pushed}} {
		if got := c.on.must(t, "run", "--image", c.image, "--", "tool"); got != "hello from tool" {
			t.Errorf("%s prints %q", c.image, got)
		}
	}
	for _, s := range []*server{local, docker} {
		if err := s.stop(); err != nil {
			t.Error(err)
		}
	}
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
	if err := os.RemoveAll(dir); err != nil {
		t.Error(err)
	}
}
