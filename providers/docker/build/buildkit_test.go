//go:build docker && buildkit

package build

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/moby/moby/client"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/test/upstream"
)

// These tests need a buildkitd beside the daemon, which "make test-docker" starts with
// SANDGATE_DOCKER=full: BUILDKIT_HOST names it, and buildctl is in PATH.

// nowhere is where no buildkitd is: what succeeds with it has built nothing.
const nowhere = "unix:///nonexistent/buildkitd.sock"

// base returns an image with a shell, smaller than that of the other tests.
func base(t *testing.T) v1.Image {
	t.Helper()
	path, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatal(err)
	}
	busybox, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var content bytes.Buffer
	archive := tar.NewWriter(&content)
	for _, h := range []tar.Header{
		{Name: "bin/busybox", Mode: 0o755, Size: int64(len(busybox))},
		{Name: "bin/sh", Mode: 0o755, Typeflag: tar.TypeLink, Linkname: "bin/busybox"},
		{Name: "bin/cat", Mode: 0o755, Typeflag: tar.TypeLink, Linkname: "bin/busybox"},
		{Name: "bin/sleep", Mode: 0o755, Typeflag: tar.TypeLink, Linkname: "bin/busybox"},
	} {
		if err := archive.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Size > 0 {
			if _, err := archive.Write(busybox); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := archive.Close(); err != nil {
		t.Fatal(err)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content.Bytes())), nil })
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config.OS, config.Architecture = "linux", runtime.GOARCH
	config.Config.Env = []string{"PATH=/bin"}
	if img, err = mutate.ConfigFile(img, config); err != nil {
		t.Fatal(err)
	}
	return img
}

// put pushes an image.
func put(t *testing.T, image string, img v1.Image) {
	t.Helper()
	ref, err := name.ParseReference(image)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, img, remote.WithAuthFromKeychain(authn.DefaultKeychain)); err != nil {
		t.Fatal(err)
	}
}

// setUpKit returns the options of a build on a base in a registry, the base's name and
// the registry's content. The registry wants a password.
func setUpKit(t *testing.T, rest string) (o BuildKitOptions, image string, content http.Handler) {
	t.Helper()
	store := upstream.ServeRegistry(t)
	// goleak: connections to the registry are kept by the transport.
	t.Cleanup(remote.DefaultTransport.(*http.Transport).CloseIdleConnections)
	store.Login(t)
	c := connect(t)
	image = store.Host + "/base:1"
	put(t, image, base(t))
	o = BuildKitOptions{Options: setUp(t, c, ""), Address: os.Getenv("BUILDKIT_HOST"), Daemon: c}
	writeFiles(t, o.Dir, map[string]string{"Dockerfile": "FROM " + image + "\n" + rest})
	return o, image, store.Content
}

func mustKit(t *testing.T, o BuildKitOptions) Delivered {
	t.Helper()
	d, err := BuildKit(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// configOf returns the config of an archive's image.
func configOf(t *testing.T, archive string) *v1.ConfigFile {
	t.Helper()
	img, err := tarball.ImageFromPath(strings.TrimPrefix(archive, "docker-archive:"), nil)
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	return config
}

func TestBuildKitSaves(t *testing.T) {
	o, image, _ := setUpKit(t, "COPY unique /unique\nARG GREETING=hello\nRUN --mount=type=cache,target=/cache <<END\necho $GREETING >/greeting\nfrom nowhere || echo a heredoc\nEND\nENV SAVED=$GREETING\n")
	o.Save = t.TempDir()
	var output bytes.Buffer
	o.Output = &output
	first := mustKit(t, o)
	if first.Reused || !strings.HasPrefix(first.Image, Repository+":") || !strings.Contains(output.String(), "a heredoc") {
		t.Errorf("%+v\n%s", first, output.String())
	}
	if env := configOf(t, first.Archive).Config.Env; !strings.Contains(strings.Join(env, " "), "SAVED=hello") {
		t.Errorf("%q", env)
	}
	away := o
	away.Address = nowhere
	if second, want := mustKit(t, away), (Delivered{Result: Result{Image: first.Image, ID: first.ID, Reused: true}, Archive: first.Archive}); second != want {
		t.Errorf("%+v instead of %+v", second, want)
	}
	// Once the archive is gone, it is made again.
	if err := os.Remove(strings.TrimPrefix(first.Archive, "docker-archive:")); err != nil {
		t.Fatal(err)
	}
	if third := mustKit(t, o); third.Reused || third.Image != first.Image {
		t.Errorf("%+v", third)
	}
	for what, change := range map[string]func(*BuildKitOptions){
		"argument": func(o *BuildKitOptions) { o.Args = map[string]string{"GREETING": "hi, there"} },
		"platform": func(o *BuildKitOptions) {
			o.Platform = map[string]string{"amd64": "linux/386", "arm64": "linux/arm"}[runtime.GOARCH]
		},
	} {
		other := o
		change(&other)
		if r := mustKit(t, other); r.Reused || r.Image == first.Image || r.ID == first.ID {
			t.Errorf("another %s: %+v", what, r)
		}
	}
	// The tag of the base moves: another image, on the new one.
	changed, err := mutate.Config(base(t), v1.Config{Env: []string{"BASE=new"}})
	if err != nil {
		t.Fatal(err)
	}
	put(t, image, changed)
	r := mustKit(t, o)
	if env := configOf(t, r.Archive).Config.Env; r.Reused || r.Image == first.Image || !strings.Contains(strings.Join(env, " "), "BASE=new") {
		t.Errorf("on a new base: %+v, %q", r, env)
	}
}

// What is in the hash is what is built on, even if the tag moves before the build.
func TestBuildKitBuildsOnTheHashedBase(t *testing.T) {
	o, image, _ := setUpKit(t, "")
	writeFiles(t, o.Dir, map[string]string{"Dockerfile": "FROM " + image + " AS base\nENV STAGE=base\nFROM base\n"})
	o.Save = t.TempDir()
	o.Platform = "linux/" + runtime.GOARCH
	pinned, err := pin(t.Context(), []string{image})
	if err != nil {
		t.Fatal(err)
	}
	changed, err := mutate.Config(base(t), v1.Config{Env: []string{"BASE=new"}})
	if err != nil {
		t.Fatal(err)
	}
	put(t, image, changed)
	s, err := take(t.Context(), o.Dir, "")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.close() }()
	k := &kit{BuildKitOptions: o, snapshot: s, pins: pinned, name: Repository + ":test"}
	k.Output = io.Discard
	archive, _, err := k.save(t.Context(), o.Save)
	if err != nil {
		t.Fatal(err)
	}
	if env := strings.Join(configOf(t, archive).Config.Env, " "); strings.Contains(env, "BASE=new") || !strings.Contains(env, "STAGE=base") {
		t.Errorf("%q", env)
	}
}

func TestBuildKitWithoutCache(t *testing.T) {
	o, image, content := setUpKit(t, "COPY unique /unique\nRUN cat /proc/sys/kernel/random/uuid >/random\n")
	o.Save, o.Push = t.TempDir(), strings.TrimSuffix(image, "base:1")+"tools"
	first := mustKit(t, o)
	o.NoCache = true
	second := mustKit(t, o)
	if second.Reused || second.Image != first.Image || second.ID == first.ID || second.Archive == first.Archive || second.Pushed == first.Pushed {
		t.Errorf("%+v after %+v", second, first)
	}
	o.NoCache, o.Address = false, nowhere
	if third := mustKit(t, o); third.ID != second.ID || third.Archive != second.Archive || third.Pushed != second.Pushed || !third.Reused {
		t.Errorf("%+v after %+v", third, second)
	}
	if configOf(t, second.Archive).RootFS.DiffIDs[2] == configOf(t, first.Archive).RootFS.DiffIDs[2] {
		t.Error("the command did not run again")
	}
	if digest := tagged(content, "tools", strings.TrimPrefix(first.Image, Repository+":")); !strings.HasSuffix(second.Pushed, "@"+digest) {
		t.Errorf("the registry has %s, not %s", digest, second.Pushed)
	}
}

// tagged returns the digest that a registry has for a tag.
func tagged(content http.Handler, repository, tag string) string {
	answer := httptest.NewRecorder()
	content.ServeHTTP(answer, httptest.NewRequest(http.MethodHead, "/v2/"+repository+"/manifests/"+tag, nil))
	return answer.Header().Get("Docker-Content-Digest")
}

func TestBuildKitPushes(t *testing.T) {
	o, image, content := setUpKit(t, "COPY unique /unique\nENV PUSHED=yes\n")
	tools := strings.TrimSuffix(image, "base:1") + "team/tools"
	o.Push = tools
	first := mustKit(t, o)
	if first.Reused || !strings.HasPrefix(first.Pushed, tools+"@sha256:") || !strings.HasPrefix(first.ID, "sha256:") {
		t.Errorf("%+v", first)
	}
	// Another tag for the same needs no buildkitd.
	o.Push, o.Address = tools+":1", nowhere
	if second := mustKit(t, o); !second.Reused || second.Pushed != first.Pushed || second.ID != first.ID {
		t.Errorf("%+v after %+v", second, first)
	}
	for _, tag := range []string{strings.TrimPrefix(first.Image, Repository+":"), "1"} {
		if digest := tagged(content, "team/tools", tag); digest == "" || !strings.HasSuffix(first.Pushed, "@"+digest) {
			t.Errorf("the registry has %q for %s", digest, tag)
		}
	}
	for _, bad := range []string{"Not A Name", first.Pushed} {
		o.Push = bad
		if _, err := BuildKit(t.Context(), o); !errors.Is(err, ErrInput) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	o.Push = tools
	if _, err := BuildKit(t.Context(), o); !errors.Is(err, ErrFailed) {
		t.Errorf("without credentials: %v", err)
	}
}

func TestBuildKitLoadsIntoTheDaemon(t *testing.T) {
	o, _, _ := setUpKit(t, "COPY unique /unique\nENV LOADED=yes\n")
	first := mustKit(t, o)
	found, err := o.Daemon.ImageInspect(t.Context(), first.Image)
	if err != nil || found.ID != first.ID || !strings.Contains(strings.Join(found.Config.Env, " "), "LOADED=yes") {
		t.Errorf("%+v: %+v, %v", first, found.Config, err)
	}
	o.Address = nowhere
	if second, want := mustKit(t, o), (Delivered{Result: Result{Image: first.Image, ID: first.ID, Reused: true}}); second != want {
		t.Errorf("%+v instead of %+v", second, want)
	}
	c, err := client.New(client.WithHost("unix://" + filepath.Join(t.TempDir(), "docker.sock")))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	o.Daemon = c
	if _, err := BuildKit(t.Context(), o); !errors.Is(err, providers.ErrUnavailable) || !strings.Contains(err.Error(), "saved, pushed or loaded") {
		t.Errorf("without a daemon: %v", err)
	}
}

func TestBuildKitThatFails(t *testing.T) {
	temporary := t.TempDir()
	t.Setenv("TMPDIR", temporary)
	for title, c := range map[string]struct {
		dockerfile string
		change     func(*testing.T, *BuildKitOptions)
		kind       error
		want       string
	}{
		"command":     {"RUN echo before; exit 7\n", nil, ErrFailed, "exit code: 7"},
		"instruction": {"FLY away\n", nil, ErrFailed, "FLY"},
		"file":        {"COPY absent /\n", nil, ErrFailed, "absent"},
		"base":        {"FROM 127.0.0.1:1/none\n", nil, ErrFailed, "FROM 127.0.0.1:1/none"},
		"address":     {"", func(_ *testing.T, o *BuildKitOptions) { o.Address = nowhere }, ErrFailed, "nonexistent"},
		"network":     {"", func(_ *testing.T, o *BuildKitOptions) { o.Network = "bridge" }, ErrInput, "bridge"},
		"platform":    {"", func(_ *testing.T, o *BuildKitOptions) { o.Platform = "a/b/c/d/e" }, ErrInput, "platform"},
		"no program":  {"", func(t *testing.T, _ *BuildKitOptions) { t.Setenv("PATH", t.TempDir()) }, providers.ErrUnsupported, "buildctl"},
	} {
		t.Run(title, func(t *testing.T) {
			o, _, _ := setUpKit(t, c.dockerfile)
			o.Save = t.TempDir()
			if c.change != nil {
				c.change(t, &o)
			}
			_, err := BuildKit(t.Context(), o)
			if !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v", err)
			}
			if left, err := os.ReadDir(o.Save); err != nil || len(left) > 0 {
				t.Errorf("an archive is left: %v, %v", left, err)
			}
		})
	}
	if left, err := filepath.Glob(filepath.Join(temporary, "sandgate-*")); err != nil || len(left) > 0 {
		t.Errorf("files are left: %v, %v", left, err)
	}
}

func TestCanceledBuildKit(t *testing.T) {
	o, _, _ := setUpKit(t, "COPY unique /unique\nRUN echo running; sleep 600\n")
	o.Save = t.TempDir()
	ctx, cancel := context.WithCancelCause(t.Context())
	canceled := errors.New("canceled by the test")
	o.Output = writerFunc(func(p []byte) {
		if strings.HasSuffix(string(p), " running\n") && !strings.Contains(string(p), "RUN") {
			cancel(canceled)
		}
	})
	if _, err := BuildKit(ctx, o); !errors.Is(err, canceled) {
		t.Errorf("%v", err)
	}
	for _, dir := range []string{o.Save, o.StateDir} {
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("files are left: %v, %v", left, err)
		}
	}
}
