//go:build docker

package build

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/moby/moby/client"
	"go.uber.org/goleak"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/docker/daemon"
	"github.com/sandgate/sandgate/test/upstream"
)

// These tests need a daemon, which "make test-docker" starts: DOCKER_HOST names it, and
// SANDGATE_DOCKER_IMAGE an image with a shell that it has.

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func connect(t testing.TB) *client.Client {
	t.Helper()
	c, err := daemon.NewClient("")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := daemon.Connect(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	return c
}

// setUp returns the options of a build of a new context, whose Dockerfile follows FROM.
func setUp(t testing.TB, c *client.Client, rest string) Options {
	t.Helper()
	dir := t.TempDir()
	// The name of the test makes it another context than those of other tests and runs.
	unique := filepath.Base(filepath.Dir(dir)) + filepath.Base(dir)
	writeFiles(t, dir, map[string]string{"Dockerfile": "FROM " + os.Getenv("SANDGATE_DOCKER_IMAGE") + "\n" + rest, "unique": unique})
	return Options{Dir: dir, Network: "none", StateDir: t.TempDir()}
}

// must builds. Images are left to the daemon's end: its builder fails when they go while
// another test builds.
func must(t testing.TB, c *client.Client, o Options) Result {
	t.Helper()
	r, err := Build(t.Context(), c, o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestSecondBuildReusesTheImage(t *testing.T) {
	t.Parallel()
	c := connect(t)
	o := setUp(t, c, "COPY unique /unique\nARG GREETING=hello\nRUN echo $GREETING; echo warning >&2\nENV GREETING=$GREETING\n")
	var output bytes.Buffer
	o.Output = &output
	first := must(t, c, o)
	if first.Reused || !strings.HasPrefix(first.Image, Repository+":") {
		t.Errorf("the first build: %+v", first)
	}
	for _, want := range []string{"Step 1/5", "\nhello\n", "\nwarning\n"} {
		if !strings.Contains(output.String(), want) {
			t.Errorf("the output lacks %q:\n%s", want, output.String())
		}
	}
	output.Reset()
	second := must(t, c, o)
	if want := (Result{Image: first.Image, ID: first.ID, Reused: true}); second != want || output.Len() > 0 {
		t.Errorf("the second build: %+v instead of %+v, %q", second, want, output.String())
	}
	// What is not the same is another image.
	other := o
	other.Args = map[string]string{"GREETING": "hi"}
	if r := must(t, c, other); r.Reused || r.Image == first.Image || !strings.Contains(output.String(), "\nhi\n") {
		t.Errorf("with another argument: %+v\n%s", r, output.String())
	}
	writeFiles(t, o.Dir, map[string]string{"unique": "changed " + first.Image})
	if r := must(t, c, o); r.Reused || r.Image == first.Image {
		t.Errorf("with another file: %+v", r)
	}
}

func TestNewBaseIsAnotherImage(t *testing.T) {
	t.Parallel()
	c := connect(t)
	bottom := must(t, c, setUp(t, c, "COPY unique /bottom\n"))
	base := "localhost/" + strings.ToLower(t.Name()) + ":" + strings.TrimPrefix(bottom.Image, Repository+":")[:12]
	if err := tag(t.Context(), c, bottom.ID, base); err != nil {
		t.Fatal(err)
	}
	o := setUp(t, c, "")
	writeFiles(t, o.Dir, map[string]string{"Dockerfile": "ARG BASE=none\nFROM $BASE\nCOPY unique /top\n"})
	o.Args = map[string]string{"BASE": base}
	first := must(t, c, o)
	other := must(t, c, setUp(t, c, "COPY unique /other\n"))
	if err := tag(t.Context(), c, other.ID, base); err != nil {
		t.Fatal(err)
	}
	second := must(t, c, o)
	if second.Reused || second.Image == first.Image || second.ID == first.ID {
		t.Errorf("%+v after %+v", second, first)
	}
	if third := must(t, c, o); !third.Reused || third.Image != second.Image {
		t.Errorf("%+v after %+v", third, second)
	}
}

func TestNoCacheRunsCommandsAgain(t *testing.T) {
	t.Parallel()
	c := connect(t)
	o := setUp(t, c, "COPY unique /unique\nRUN cat /proc/sys/kernel/random/uuid >/random\n")
	first := must(t, c, o)
	o.NoCache = true
	second := must(t, c, o)
	if second.Reused || second.ID == first.ID || second.Image != first.Image {
		t.Errorf("%+v after %+v", second, first)
	}
	o.NoCache = false
	if third := must(t, c, o); third.ID != second.ID || !third.Reused {
		t.Errorf("%+v after %+v", third, second)
	}
}

func TestTarget(t *testing.T) {
	t.Parallel()
	c := connect(t)
	o := setUp(t, c, "")
	from := "FROM " + os.Getenv("SANDGATE_DOCKER_IMAGE")
	writeFiles(t, o.Dir, map[string]string{"Dockerfile": from + " AS one\nENV STAGE=one\n" + from + "\nENV STAGE=two\n"})
	for target, want := range map[string]string{"one": "STAGE=one", "": "STAGE=two"} {
		o.Target = target
		r := must(t, c, o)
		found, err := c.ImageInspect(t.Context(), r.Image)
		if err != nil || !strings.Contains(strings.Join(found.Config.Env, " "), want) {
			t.Errorf("%q: %+v, %v", target, found.Config, err)
		}
	}
	o.Target = "three"
	if _, err := Build(t.Context(), c, o); !errors.Is(err, ErrFailed) {
		t.Errorf("an unknown stage: %v", err)
	}
}

// Builds of one context at once, some from processes of their own as far as locks are
// concerned, run its commands once and return one image.
func TestConcurrentBuildsRunOnce(t *testing.T) {
	t.Parallel()
	c := connect(t)
	o := setUp(t, c, "COPY unique /unique\nRUN cat /proc/sys/kernel/random/uuid >/random\n")
	const calls = 4
	results := make([]Result, calls)
	errs := make([]error, calls)
	var group sync.WaitGroup
	for i := range calls {
		group.Go(func() { results[i], errs[i] = Build(t.Context(), c, o) })
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	built := 0
	for _, r := range results {
		if !r.Reused {
			built++
		}
		if r.ID != results[0].ID || r.Image != results[0].Image {
			t.Errorf("%+v and %+v", r, results[0])
		}
	}
	if built != 1 {
		t.Errorf("%d of %d built: %+v", built, calls, results)
	}
	if left, err := os.ReadDir(o.StateDir); err != nil || len(left) > 0 {
		t.Errorf("lock files are left: %v, %v", left, err)
	}
}

// Builds of users who share no lock make equal images, and the name is always one of them.
func TestConcurrentBuildsWithoutACommonLock(t *testing.T) {
	t.Parallel()
	c := connect(t)
	o := setUp(t, c, "COPY unique /unique\nRUN cat /unique >/copy\n")
	const calls = 3
	results := make([]Result, calls)
	errs := make([]error, calls)
	var group sync.WaitGroup
	for i := range calls {
		mine := o
		mine.StateDir = t.TempDir()
		group.Go(func() { results[i], errs[i] = Build(t.Context(), c, mine) })
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	ids := make(map[string]bool)
	for _, r := range results {
		ids[r.ID] = true
		if r.Image != results[0].Image {
			t.Errorf("%+v and %+v", r, results[0])
		}
	}
	if found, err := c.ImageInspect(t.Context(), results[0].Image); err != nil || !ids[found.ID] {
		t.Errorf("the name is %s, not one of %v: %v", found.ID, ids, err)
	}
}

func TestBuildThatFails(t *testing.T) {
	t.Parallel()
	c := connect(t)
	for name, s := range map[string]struct{ dockerfile, want string }{
		"command":     {"RUN echo before; exit 7\n", "7"},
		"instruction": {"FLY away\n", "FLY"},
		"file":        {"COPY absent /\n", "absent"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var output bytes.Buffer
			o := setUp(t, c, s.dockerfile)
			o.Output = &output
			_, err := Build(t.Context(), c, o)
			if !errors.Is(err, ErrFailed) || !strings.Contains(err.Error(), s.want) {
				t.Errorf("%v", err)
			}
			if n := strings.Count(output.String(), "\nbefore\n"); name == "command" && n != 1 {
				t.Errorf("the command ran %d times:\n%s", n, output.String())
			}
		})
	}
}

func TestCanceledBuildLeavesNoName(t *testing.T) {
	t.Parallel()
	c := connect(t)
	o := setUp(t, c, "COPY unique /unique\nRUN echo running; sleep 600\n")
	ctx, cancel := context.WithCancelCause(t.Context())
	canceled := errors.New("canceled by the test")
	o.Output = writerFunc(func(p []byte) {
		if string(p) == "running\n" {
			cancel(canceled)
		}
	})
	if _, err := Build(ctx, c, o); !errors.Is(err, canceled) {
		t.Errorf("%v", err)
	}
	if left, err := os.ReadDir(o.StateDir); err != nil || len(left) > 0 {
		t.Errorf("lock files are left: %v, %v", left, err)
	}
}

type writerFunc func([]byte)

func (f writerFunc) Write(p []byte) (int, error) { f(p); return len(p), nil }

func TestDaemonThatIsAway(t *testing.T) {
	t.Parallel()
	c, err := daemon.NewClient("unix://" + filepath.Join(t.TempDir(), "docker.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	o := setUp(t, c, "")
	if _, err := Build(t.Context(), c, o); !errors.Is(err, providers.ErrUnavailable) {
		t.Errorf("%v", err)
	}
}

// An archive is complete or not there, also when several calls save it at once.
func TestSave(t *testing.T) {
	t.Parallel()
	c := connect(t)
	r := must(t, c, setUp(t, c, "COPY unique /unique\nENV SAVED=yes\n"))
	dir := filepath.Join(t.TempDir(), "archives")
	const calls = 3
	saved := make([]string, calls)
	errs := make([]error, calls)
	var group sync.WaitGroup
	for i := range calls {
		group.Go(func() { saved[i], errs[i] = Save(t.Context(), c, r.ID, dir) })
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	path := strings.TrimPrefix(saved[0], "docker-archive:")
	if saved[1] != saved[0] || saved[2] != saved[0] || path == saved[0] {
		t.Fatalf("%q", saved)
	}
	img, err := tarball.ImageFromPath(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.ConfigFile()
	if err != nil || !strings.Contains(strings.Join(config.Config.Env, " "), "SAVED=yes") {
		t.Errorf("%+v, %v", config, err)
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
		t.Errorf("the directory has %v, %v", files, err)
	}
	if _, err := Save(t.Context(), c, "sha256:"+strings.Repeat("0", 64), dir); !errors.Is(err, providers.ErrStartFailed) {
		t.Errorf("an image that is not there: %v", err)
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
		t.Errorf("the directory has %v, %v", files, err)
	}
}

func TestPush(t *testing.T) {
	store := upstream.ServeRegistry(t)
	host := store.Host
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	c := connect(t)
	r := must(t, c, setUp(t, c, "COPY unique /unique\n"))
	if _, err := Push(t.Context(), c, r, host+"/team/tools", io.Discard); !errors.Is(err, ErrFailed) {
		t.Errorf("without credentials: %v", err)
	}
	store.Login(t)
	pinned := ""
	for _, to := range []string{host + "/team/tools", host + "/team/tools:1"} {
		got, err := Push(t.Context(), c, r, to, io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(got, host+"/team/tools@sha256:") || pinned != "" && got != pinned {
			t.Errorf("%s has become %s, and %q before", to, got, pinned)
		}
		pinned = got
	}
	for _, tag := range []string{strings.TrimPrefix(r.Image, Repository+":"), "1"} {
		request := httptest.NewRequest(http.MethodHead, "/v2/team/tools/manifests/"+tag, nil)
		answer := httptest.NewRecorder()
		store.Content.ServeHTTP(answer, request)
		if digest := answer.Header().Get("Docker-Content-Digest"); answer.Code != http.StatusOK || !strings.HasSuffix(pinned, "@"+digest) {
			t.Errorf("the registry has %s for %s: %d", digest, tag, answer.Code)
		}
	}
	for _, bad := range []string{"Not A Name", pinned} {
		if _, err := Push(t.Context(), c, r, bad, io.Discard); !errors.Is(err, ErrInput) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
