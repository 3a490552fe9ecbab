package docker

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/moby/moby/client"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/providertest"
)

// TestKilledServersLoseNoSuspendedSandbox: see testKills.
func TestKilledServersLoseNoSuspendedSandbox(t *testing.T) {
	for _, podman := range []bool{false, true} {
		fake := &fakeDaemon{podman: podman}
		config := fakeConfig(t, fake)
		config.Transport = TransportExec
		testKills(t, config, fake, []string{"restart", "resume", "delete"}, func(*testing.T, *Provider) {})
	}
}

// testKills kills servers that suspend or resume a sandbox, in place of each of their
// requests that change something. The sandbox must keep its environment. A server that
// starts must leave it with one stopped container, and one that runs already must be
// able to resume it, or to delete it with all that there is: next has which of these
// come after a kill.
func testKills(t *testing.T, config Config, d http.Handler, next []string, check func(*testing.T, *Provider)) {
	t.Helper()
	other := open(t, config)
	closeLater(t, other)
	create := func() {
		spec := providers.Spec{
			Tenant: "default", ID: "kills", Hash: "one", Template: "default", Network: providers.NetworkNone, Resources: DefaultResources(),
			Env: map[string]string{"GREETING": "hello"},
		}
		if _, err := providertest.Create(t.Context(), other, killsName, spec); err != nil {
			t.Fatal(err)
		}
	}
	create()
	k := &killer{daemon: d}
	mortal := config
	mortal.Host = serveDaemon(t, k)
	for _, then := range next {
		for n := 0; ; n++ {
			suspended := killed(t, mortal, k, n, func(ctx context.Context, p *Provider) error {
				_, err := p.Suspend(ctx, killsName)
				return err
			})
			if then == "restart" {
				restart(t, config)
			}
			if _, err := other.Suspend(t.Context(), killsName); err != nil {
				t.Fatalf("suspend after %d requests of a suspension: %v", n, err)
			}
			resumed := killed(t, mortal, k, n, func(ctx context.Context, p *Provider) error {
				_, err := resume(ctx, p)
				return err
			})
			t.Logf("killed after %d requests: %v, then %s", n, containersOf(t, other), then)
			if resumed {
				if !suspended || n < 4 {
					t.Fatalf("a resumption took only %d requests", n)
				}
				break
			}
			switch then {
			case "restart":
				restart(t, config)
			case "delete":
				if err := other.Delete(t.Context(), killsName, providers.Condition{}); err != nil {
					t.Fatalf("delete after %d requests of a resumption: %v", n, err)
				}
				if all := containersOf(t, other); len(all) > 0 {
					t.Fatalf("after %d requests of a resumption and a deletion there are %q", n, all)
				}
				create()
				continue
			}
			info, err := resume(t.Context(), other)
			if err != nil || info.State != providers.StateActive {
				t.Fatalf("resume after %d requests of a resumption: %+v, %v", n, info, err)
			}
			assertWhole(t, other, "running")
			check(t, other)
		}
	}
	if err := other.Delete(t.Context(), killsName, providers.Condition{}); err != nil {
		t.Fatal(err)
	}
}

const killsName = "sg-kills"

// killed runs a server that is killed in place of its request after the next n that
// change something. It reports whether the operation ended before.
func killed(t *testing.T, config Config, k *killer, n int, operation func(context.Context, *Provider) error) bool {
	t.Helper()
	k.arm(0, nil)
	p := open(t, config)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	k.arm(n, cancel)
	err := operation(ctx, p)
	k.arm(0, nil)
	if err != nil && ctx.Err() == nil {
		t.Fatalf("after %d requests: %v", n, err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	return err == nil
}

func resume(ctx context.Context, p *Provider) (providers.Info, error) {
	info, conn, err := p.Resume(ctx, killsName)
	if conn != nil {
		_ = conn.Close()
	}
	return info, err
}

// restart starts a server, which must leave the suspended sandbox with one stopped
// container.
func restart(t *testing.T, config Config) {
	t.Helper()
	p := open(t, config)
	defer func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}()
	assertWhole(t, p, "exited", "created")
	if info, err := p.Get(t.Context(), killsName); err != nil || info.State != providers.StateSuspended {
		t.Errorf("after a restart it is %+v, %v", info, err)
	}
}

// assertWhole fails unless there is exactly the sandbox's container, with its
// environment and one of these states.
func assertWhole(t *testing.T, p *Provider, states ...string) {
	t.Helper()
	if all := containersOf(t, p); len(all) != 1 || !slices.ContainsFunc(states, func(s string) bool { return all[0] == killsName+" "+s }) {
		t.Fatalf("containers %q, want %s in one of the states %q", all, killsName, states)
	}
	found, err := p.docker.ContainerInspect(t.Context(), killsName, client.ContainerInspectOptions{})
	if err != nil || !slices.Contains(found.Container.Config.Env, "GREETING=hello") {
		t.Fatalf("the environment is %+v, %v", found.Container.Config, err)
	}
}

// containersOf returns the names and states of a state directory's containers.
func containersOf(t *testing.T, p *Provider) []string {
	t.Helper()
	filters := make(client.Filters).Add("label", serverLabel+"="+p.id)
	list, err := p.docker.ContainerList(t.Context(), client.ContainerListOptions{All: true, Filters: filters})
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, c := range list.Items {
		out = append(out, strings.TrimPrefix(c.Names[0], "/")+" "+string(c.State))
	}
	slices.Sort(out)
	return out
}
