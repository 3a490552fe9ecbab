//go:build docker

package docker

import (
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/docker/image"
	"github.com/sandgate/sandgate/providers/internal/directory"
	"github.com/sandgate/sandgate/providers/providertest"
)

func testSpec(name string) providers.Spec {
	return providers.Spec{
		Tenant: "default", ID: name, Hash: "of " + name, Template: "default", Network: providers.NetworkNone, Resources: DefaultResources(),
		Env: map[string]string{"GREETING": "hello"},
	}
}

func create(t *testing.T, p *Provider, name string, spec providers.Spec) providers.Info {
	t.Helper()
	info, err := providertest.Create(t.Context(), p, name, spec)
	if err != nil {
		t.Fatal(err)
	}
	return info
}

// A suspension keeps files and environment, and loses processes.
func TestSuspensionKeepsFilesAndLosesProcesses(t *testing.T) {
	t.Parallel()
	p := open(t, testConfig(t))
	closeLater(t, p)
	first := create(t, p, "sg-suspend", testSpec("sg-suspend"))
	providertest.Shell(t, p, first.Name, "echo kept >/workspace/file; echo kept >$HOME/file")
	for range 2 {
		info, err := p.Suspend(t.Context(), first.Name)
		if err != nil || info.State != providers.StateSuspended {
			t.Fatalf("suspend: %+v, %v", info, err)
		}
	}
	if conn, err := p.Dial(t.Context(), first.Name); !errors.Is(err, providers.ErrNotActive) {
		t.Errorf("dial of a suspended one: %v, %v", conn, err)
	}
	if _, err := providertest.Create(t.Context(), p, first.Name, testSpec(first.Name)); !errors.Is(err, providers.ErrNotActive) {
		t.Errorf("create of a suspended one: %v", err)
	}
	page, err := p.List(t.Context(), providers.Query{States: []providers.State{providers.StateSuspended}, Limit: 10})
	if err != nil || len(page.Sandboxes) != 1 {
		t.Errorf("list of suspended ones: %+v, %v", page, err)
	}
	resumed, conn, err := p.Resume(t.Context(), first.Name)
	if err != nil || conn == nil {
		t.Fatalf("resume: %v, %v", conn, err)
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
	if resumed.State != providers.StateActive || resumed.Incarnation == first.Incarnation || !resumed.CreateTime.Equal(first.CreateTime) {
		t.Errorf("it resumed as %+v after %+v", resumed, first)
	}
	if got := providertest.Shell(t, p, first.Name, "cat /workspace/file $HOME/file; echo $GREETING"); got != "kept\nkept\nhello\n" {
		t.Errorf("afterwards it has %q", got)
	}
	if info, conn, err := p.Resume(t.Context(), first.Name); err != nil || conn != nil || info.Incarnation != resumed.Incarnation {
		t.Errorf("resume of an active one: %+v, %v, %v", info, conn, err)
	}
	spec := testSpec("sg-writable")
	spec.TemplateOptions = []byte(`{"writable_root": true}`)
	if info := create(t, p, "sg-writable", spec); info.ReadOnlySystem {
		t.Errorf("with a writable root: %+v", info)
	}
	if _, err := p.Suspend(t.Context(), "sg-writable"); !errors.Is(err, providers.ErrUnsupported) {
		t.Errorf("suspend with a writable root: %v", err)
	}
}

// The daemon gets a template's request for GPUs. Where it has no driver for them, it
// rejects the container at its start, and the error says what is missing.
func TestGPUsAreRequested(t *testing.T) {
	t.Parallel()
	p := open(t, testConfig(t))
	closeLater(t, p)
	spec := testSpec("sg-gpus")
	spec.TemplateOptions = []byte(`{"gpus": 2}`)
	o, err := decodeOptions(spec)
	if err != nil {
		t.Fatal(err)
	}
	base, err := p.images.Find(t.Context(), p.config.Image, true)
	if err != nil {
		t.Fatal(err)
	}
	rec := &record{Base: directory.Base{Container: "sg-gpus-plan", Incarnation: "one"}, Disk: "gpus", Transport: TransportExec}
	pl := &plan{server: p.id, name: "sg-gpus-plan", rec: rec, spec: spec, options: o, user: o.userOf(base), cpus: p.info.NCPU}
	if pl.image, err = p.images.PreparedName(base, pl.user); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(p.images.Prepare(t.Context(), base, pl.user), p.createContainer(t.Context(), pl)); err != nil {
		t.Fatal(err)
	}
	made, err := p.docker.ContainerInspect(t.Context(), "sg-gpus-plan", client.ContainerInspectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := made.Container.HostConfig.DeviceRequests; len(got) != 1 || got[0].Count != 2 || len(got[0].Capabilities) != 1 || !slices.Equal(got[0].Capabilities[0], []string{"gpu"}) {
		t.Errorf("the daemon has the requests %+v", got)
	}
	if err := errors.Join(p.removeContainer(t.Context(), "sg-gpus-plan"), p.removeVolumes(t.Context(), rec)); err != nil {
		t.Error(err)
	}
	_, err = providertest.Create(t.Context(), p, "sg-gpus", spec)
	if err == nil {
		if err := p.Delete(t.Context(), "sg-gpus", providers.Condition{}); err != nil {
			t.Error(err)
		}
		return // this machine has two GPUs
	}
	if !errors.Is(err, providers.ErrStartFailed) || !strings.Contains(err.Error(), "container toolkit") {
		t.Errorf("without a driver: %v", err)
	}
}

// What a container of the daemon does by itself is seen, and a foreign one is not
// touched.
func TestForeignContainersAreNotTouched(t *testing.T) {
	t.Parallel()
	p := open(t, testConfig(t))
	closeLater(t, p)
	other, err := p.docker.ContainerCreate(t.Context(), client.ContainerCreateOptions{
		Name: "sg-taken", Config: &container.Config{Image: p.config.Image, Cmd: []string{"true"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if _, err := p.docker.ContainerRemove(t.Context(), other.ID, client.ContainerRemoveOptions{Force: true}); err != nil {
			t.Error(err)
		}
	}()
	if _, err := providertest.Create(t.Context(), p, "sg-taken", testSpec("sg-taken")); !errors.Is(err, providers.ErrExists) || !strings.Contains(err.Error(), "docker rm --force sg-taken") {
		t.Errorf("create with another's name: %v", err)
	}
	if _, err := p.docker.ContainerInspect(t.Context(), other.ID, client.ContainerInspectOptions{}); err != nil {
		t.Errorf("the other's container: %v", err)
	}
	if _, err := p.Get(t.Context(), "sg-taken"); !errors.Is(err, providers.ErrNotFound) {
		t.Errorf("afterwards: %v", err)
	}

	create(t, p, "sg-ends", testSpec("sg-ends"))
	if _, err := p.docker.ContainerKill(t.Context(), "sg-ends", client.ContainerKillOptions{Signal: "KILL"}); err != nil {
		t.Fatal(err)
	}
	info, err := p.Get(t.Context(), "sg-ends")
	if err != nil || info.State != providers.StateFailed || !strings.Contains(info.Message, "exit code 137") {
		t.Errorf("after a kill: %+v, %v", info, err)
	}
	if _, err := p.Dial(t.Context(), "sg-ends"); !errors.Is(err, providers.ErrNotActive) {
		t.Errorf("dial after a kill: %v", err)
	}
	if _, err := p.docker.ContainerRemove(t.Context(), "sg-ends", client.ContainerRemoveOptions{Force: true}); err != nil {
		t.Fatal(err)
	}
	if info, err := p.Get(t.Context(), "sg-ends"); err != nil || info.State != providers.StateFailed {
		t.Errorf("after a removal: %+v, %v", info, err)
	}
	if err := p.Delete(t.Context(), "sg-ends", providers.Condition{}); err != nil {
		t.Errorf("delete after a removal: %v", err)
	}
}

// A server that was killed leaves half-made sandboxes, which the next one removes.
func TestHalfMadeSandboxesOfAKilledServerAreRemoved(t *testing.T) {
	t.Parallel()
	config := testConfig(t)
	p := open(t, config)
	for _, name := range []string{"sg-creating", "sg-deleting"} {
		create(t, p, name, testSpec(name))
		rec, err := readRecord(p.Layout.Sandbox(name))
		if err != nil {
			t.Fatal(err)
		}
		rec.Phase = directory.Phase(strings.TrimPrefix(name, "sg-"))
		if err := directory.Write(p.Layout.Sandbox(name), rec); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(string(p.Layout.Sandbox("sg-empty")), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	next := open(t, config)
	closeLater(t, next)
	page, err := next.List(t.Context(), providers.Query{Limit: 10})
	if err != nil || len(page.Sandboxes) != 0 {
		t.Errorf("the next server has %+v, %v", page, err)
	}
}

// Images: one that is missing and may not be pulled, one that no registry has, and a
// prepared image that somebody removed.
func TestMissingAndRemovedImages(t *testing.T) {
	t.Parallel()
	p := open(t, testConfig(t))
	closeLater(t, p)
	for options, want := range map[string]string{`{"pull": "never"}`: "does not allow to pull", `{}`: "pull image 127.0.0.1:1/none:latest"} {
		spec := testSpec("sg-image")
		spec.Image, spec.TemplateOptions = "127.0.0.1:1/none", []byte(options)
		if _, err := providertest.Create(t.Context(), p, "sg-image", spec); !errors.Is(err, providers.ErrStartFailed) || !strings.Contains(err.Error(), want) {
			t.Errorf("options %s: %v, want %s", options, err, want)
		}
	}
	other := testSpec("sg-prepared")
	other.TemplateOptions = []byte(`{"user": "1234:1234"}`)
	create(t, p, "sg-prepared", other)
	if err := p.Delete(t.Context(), "sg-prepared", providers.Condition{}); err != nil {
		t.Fatal(err)
	}
	base, err := p.images.Find(t.Context(), p.config.Image, false)
	if err != nil {
		t.Fatal(err)
	}
	prepared, err := p.images.PreparedName(base, image.ParseUser("1234:1234"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.docker.ImageRemove(t.Context(), prepared, client.ImageRemoveOptions{}); err != nil {
		t.Fatal(err)
	}
	create(t, p, "sg-prepared", other)
	bad := testSpec("sg-runtime")
	bad.TemplateOptions = []byte(`{"runtime": "no-such-runtime"}`)
	_, err = providertest.Create(t.Context(), p, "sg-runtime", bad)
	// Podman ignores it, and the provider does not.
	if !errors.Is(err, providers.ErrStartFailed) && !errors.Is(err, providers.ErrUnsupported) || !strings.Contains(err.Error(), "no-such-runtime") {
		t.Errorf("an unknown runtime: %v", err)
	}
}

// With gVisor the agent is reached by exec: its sandboxes cannot have sockets of the
// host.
func TestGVisorReachesTheAgentByExec(t *testing.T) {
	t.Parallel()
	p := open(t, testConfig(t))
	closeLater(t, p)
	if _, ok := p.info.Runtimes["runsc"]; !ok {
		t.Fatalf("the daemon has no runtime runsc: %v", p.info.Runtimes)
	}
	spec := testSpec("sg-gvisor")
	spec.TemplateOptions = []byte(`{"runtime": "runsc"}`)
	info := create(t, p, "sg-gvisor", spec)
	if got := providertest.Shell(t, p, info.Name, "uname -r; echo $GREETING >/workspace/file; cat /workspace/file"); !strings.Contains(got, "gvisor\nhello\n") || info.Transport != "exec" || info.Runtime != "runsc" {
		t.Errorf("%q in %+v", got, info)
	}
}

// TestSandboxesAreAdoptedOverTheDaemonsEnd continues over the daemon's end where live restore keeps containers, and
// finds them ended where not. "make test-docker" restarts the daemon between the steps.
func TestSandboxesAreAdoptedOverTheDaemonsEnd(t *testing.T) {
	step, dir := os.Getenv("SANDGATE_DOCKER_STEP"), os.Getenv("SANDGATE_DOCKER_STEP_DIR")
	if step == "" {
		step, dir = "create", t.TempDir()
	}
	config := Config{StateDir: dir, Image: os.Getenv("SANDGATE_DOCKER_IMAGE"), Agent: func(string) ([]byte, error) { return os.ReadFile(agentFile(t)) }}
	p := open(t, config)
	closeLater(t, p)
	if step == "create" {
		info := create(t, p, "sg-adopted", testSpec("sg-adopted"))
		providertest.Shell(t, p, info.Name, "echo "+info.Incarnation+" >/workspace/incarnation")
		if os.Getenv("SANDGATE_DOCKER_STEP") != "" {
			return
		}
		step = "running"
	}
	info, err := p.Get(t.Context(), "sg-adopted")
	if err != nil {
		t.Fatal(err)
	}
	switch step {
	case "running":
		if got := providertest.Shell(t, p, info.Name, "cat /workspace/incarnation"); info.State != providers.StateActive || got != info.Incarnation+"\n" {
			t.Errorf("it is %+v and holds %q", info, got)
		}
		if os.Getenv("SANDGATE_DOCKER_STEP") != "" {
			return
		}
	case "ended":
		if info.State != providers.StateFailed {
			t.Errorf("it is %+v", info)
		}
	}
	if err := p.Delete(t.Context(), info.Name, providers.Condition{}); err != nil {
		t.Error(err)
	}
}

// A daemon that is not there or is too old, and an address that is none, are reported.
func TestDaemonsThatCannotBeUsed(t *testing.T) {
	config := testConfig(t)
	old := filepath.Join(t.TempDir(), "old.sock")
	l, err := net.Listen("unix", old)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Api-Version", "1.30") })}
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	defer func() {
		_ = server.Close()
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	}()
	for host, c := range map[string]struct {
		want error
		text string
	}{
		"unix:///nonexistent/docker.sock": {providers.ErrUnavailable, "is it running?"},
		"unix://" + old:                   {providers.ErrUnsupported, "too old: it has version 1.30"},
		"nonsense":                        {providers.ErrInvalid, "address of the Docker daemon"},
	} {
		bad := config
		bad.Host = host
		p, err := New(t.Context(), bad)
		if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v, want %s", host, err, c.text)
		}
		if p != nil {
			_ = p.Close()
		}
	}
}
