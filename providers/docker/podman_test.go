package docker

import (
	"errors"
	"strings"
	"testing"

	"github.com/moby/moby/api/types/container"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/docker/daemon"
	"github.com/sandgate/sandgate/providers/internal/directory"
)

// TestContainerWithATakenName: of this state directory it is replaced, once there is
// another one, and of others it stays. So it is with a daemon that reports no conflict.
func TestContainerWithATakenName(t *testing.T) {
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
		for _, podman := range []bool{false, true} {
			fake := &fakeDaemon{podman: podman, broken: c.broken}
			p := on(t, fake)
			if c.old != nil {
				fake.containers["sg-a"] = &fakeContainer{id: "old", config: c.old}
			}
			if err := p.createContainer(t.Context(), pl); !errors.Is(err, c.want) {
				t.Errorf("%s: %v, want %v", name, err, c.want)
			}
			now := fake.get("sg-a")
			if isNew := now != nil && now.id != "old"; isNew != (c.want == nil) || !isNew && (now != nil) != (c.old != nil) {
				t.Errorf("%s: the container is %+v", name, now)
			}
			if n := len(fake.names()); n > 1 {
				t.Errorf("%s: %d containers are left", name, n)
			}
		}
	}
}

// TestIgnoredRuntimesAreErrors: a sandbox does not run with less isolation than its
// template says, or without GPUs.
func TestIgnoredRuntimesAreErrors(t *testing.T) {
	p := on(t, &fakeDaemon{podman: true})
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

func on(t *testing.T, fake *fakeDaemon) *Provider {
	t.Helper()
	c, err := daemon.NewClient(serveFake(t, fake))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return &Provider{docker: c, id: "this"}
}

func planOf(o options) *plan {
	rec := &record{Base: directory.Base{Container: "sg-a", Incarnation: "one"}, Disk: "disk", Transport: TransportExec}
	return &plan{server: "this", name: "sg-a", dir: "/state/sg-a", rec: rec, options: o, image: "prepared", cpus: 1, spec: providers.Spec{Network: providers.NetworkNone}}
}
