package docker

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"path"
	"strings"
	"sync"
	"testing"

	"github.com/moby/moby/api/types/container"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/docker/daemon"
	"github.com/sandgate/sandgate/providers/internal/directory"
)

// podman answers requests about containers as Podman does: a name that is taken is an
// internal error, and a runtime or GPUs are ignored.
type podman struct {
	mu         sync.Mutex
	containers map[string]*container.Config // by name, which is the id, too
	broken     bool                         // no container can be made
}

func (d *podman) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	d.mu.Lock()
	defer d.mu.Unlock()
	reply := func(code int, body any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(body)
	}
	fail := func(code int, text string) { reply(code, map[string]string{"message": text}) }
	w.Header().Set("Api-Version", "1.41")
	_, at, _ := strings.Cut(r.URL.Path, "/containers/")
	name, action := path.Split(at)
	name = strings.TrimSuffix(name, "/")
	switch {
	case path.Base(r.URL.Path) == "_ping":
	case at == "create":
		name = r.URL.Query().Get("name")
		c := &container.Config{}
		switch {
		case json.NewDecoder(r.Body).Decode(c) != nil, d.broken, d.containers[name] != nil:
			fail(http.StatusInternalServerError, "container create")
		default:
			d.containers[name] = c
			reply(http.StatusCreated, container.CreateResponse{ID: name})
		}
	case r.Method == http.MethodDelete:
		delete(d.containers, at)
		w.WriteHeader(http.StatusNoContent)
	case d.containers[name] == nil:
		fail(http.StatusNotFound, "no such container")
	case action == "json":
		reply(http.StatusOK, map[string]any{"Id": name, "Config": d.containers[name], "HostConfig": map[string]any{"Runtime": "oci"}})
	case action == "rename":
		d.containers[r.URL.Query().Get("name")] = d.containers[name]
		delete(d.containers, name)
		w.WriteHeader(http.StatusNoContent)
	default:
		fail(http.StatusNotImplemented, r.Method+" "+r.URL.Path)
	}
}

// TestContainerWithATakenName: of this state directory it is replaced, once there is
// another one, and of others it stays. So it is with a daemon that reports no conflict.
func TestContainerWithATakenName(t *testing.T) {
	p, fake := onPodman(t)
	pl := planOf(options{})
	labels := pl.labels()
	for name, c := range map[string]struct {
		old    *container.Config
		broken bool
		want   error
	}{
		"ours":                      {old: &container.Config{Labels: labels}},
		"ours, no other":            {old: &container.Config{Labels: labels}, broken: true, want: providers.ErrStartFailed},
		"another state directory's": {old: &container.Config{Labels: map[string]string{serverLabel: "other"}}, want: providers.ErrExists},
		"none":                      {},
		"none, none can be made":    {broken: true, want: providers.ErrStartFailed},
	} {
		fake.containers, fake.broken = map[string]*container.Config{}, c.broken
		if c.old != nil {
			fake.containers["sg-a"] = c.old
		}
		if err := p.createContainer(t.Context(), pl); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		now := fake.containers["sg-a"]
		if isNew := now != nil && len(now.Entrypoint) > 0; isNew != (c.want == nil) || !isNew && now != c.old {
			t.Errorf("%s: the container is %+v", name, now)
		}
		if n := len(fake.containers); n > 1 {
			t.Errorf("%s: %d containers are left", name, n)
		}
	}
}

// TestIgnoredRuntimesAreErrors: a sandbox does not run with less isolation than its
// template says, or without GPUs.
func TestIgnoredRuntimesAreErrors(t *testing.T) {
	p, _ := onPodman(t)
	for text, o := range map[string]options{"runtime": {Runtime: "runsc"}, "gpus": {GPUs: 1}} {
		err := p.createContainer(t.Context(), planOf(o))
		if !errors.Is(err, providers.ErrUnsupported) || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v", text, err)
		}
		if err := p.removeContainer(t.Context(), "sg-a"); err != nil {
			t.Error(err)
		}
	}
	if err := p.createContainer(t.Context(), planOf(options{Runtime: "oci"})); err != nil {
		t.Errorf("the runtime that it has: %v", err)
	}
}

func onPodman(t *testing.T) (*Provider, *podman) {
	t.Helper()
	fake := &podman{containers: make(map[string]*container.Config)}
	server := httptest.NewServer(fake)
	t.Cleanup(server.Close)
	c, err := daemon.NewClient("tcp://" + server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return &Provider{docker: c, id: "this"}, fake
}

func planOf(o options) *plan {
	rec := &record{Base: directory.Base{Container: "sg-a", Incarnation: "one"}, Disk: "disk", Transport: TransportExec}
	return &plan{server: "this", name: "sg-a", dir: "/state/sg-a", rec: rec, options: o, image: "prepared", cpus: 1, spec: providers.Spec{Network: providers.NetworkNone}}
}
