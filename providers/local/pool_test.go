//go:build linux

package local_test

import (
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/directory"
	"github.com/sandgate/sandgate/providers/internal/lock"
	"github.com/sandgate/sandgate/providers/local"
	"github.com/sandgate/sandgate/providers/providertest"
)

// TestPool runs the pool cases for both ways in, and with gVisor.
func TestPool(t *testing.T) {
	for _, c := range []struct {
		name, runtime string
		way           local.Transport
	}{
		{"socket", "runc", local.TransportSocket},
		{"exec", "runc", local.TransportExec},
		{"runsc", "runsc", local.TransportExec},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			config := testConfigOf(t, c.runtime)
			config.Transport = c.way
			providertest.RunPool(t, providertest.PoolHarness{
				Harness: providertest.Harness{
					Open: func(t *testing.T) providers.Provider { return open(t, config) },
					Spec: func() providers.Spec {
						return providers.Spec{
							Network: providers.NetworkNone, Resources: local.DefaultResources(),
							TemplateOptions: []byte(`{"host_network": true}`),
						}
					},
				},
				BreakUnclaimed: func(t *testing.T, p providers.Provider, template string) {
					local.KillUnclaimed(t, p.(*local.Provider), template)
				},
				Unfit: map[string]func(*providers.Spec){
					"network":          func(s *providers.Spec) { s.Network = providers.NetworkFull },
					"template options": func(s *providers.Spec) { s.TemplateOptions = nil },
				},
			})
		})
	}
}

// TestExecWorksInAClaimedSandbox: the runtime's exec works in a sandbox whose directory a claim
// has moved.
func TestExecWorksInAClaimedSandbox(t *testing.T) {
	config := testConfig(t)
	config.Transport = local.TransportExec
	p := open(t, config)
	spec := providers.Spec{Template: "moved", Hash: "h", Network: providers.NetworkNone, Resources: local.DefaultResources()}
	pool := []providers.Pool{{Template: "moved", Spec: spec, Target: 1}}
	if err := p.KeepPools(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	for s := (providers.PoolStatus{}); s.Available == 0; time.Sleep(10 * time.Millisecond) {
		var err error
		if s, err = p.PoolStatus(t.Context(), "moved"); err != nil {
			t.Fatal(err)
		}
	}
	if info, err := providertest.Create(t.Context(), p, "one", spec); err != nil || !info.FromPool {
		t.Fatalf("create: %+v, %v", info, err)
	}
	// The connection of the claim goes with the first call.
	for range 3 {
		if got := providertest.Shell(t, p, "one", "echo here"); got != "here\n" {
			t.Errorf("it prints %q", got)
		}
	}
	if err := errors.Join(p.KeepPools(t.Context(), nil), p.Delete(t.Context(), "one", providers.Condition{}), p.Close()); err != nil {
		t.Error(err)
	}
}

// TestPoolFetchesItsImageBeforeItsTurn: a pool waits for its image before its turn to start a sandbox,
// so that others need not wait for the image too.
func TestPoolFetchesItsImageBeforeItsTurn(t *testing.T) {
	config := testConfig(t)
	p := open(t, config)
	turn, err := lock.NewTable(filepath.Join(config.StateDir, "locks")).Acquire(t.Context(), "_start")
	if err != nil {
		t.Fatal(err)
	}
	spec := providers.Spec{
		Template: "fetched", Hash: "h", Network: providers.NetworkNone, Resources: local.DefaultResources(),
		Image: "oci:" + writeLayout(t, busyboxImage(t)),
	}
	if err := p.KeepPools(t.Context(), []providers.Pool{{Template: "fetched", Spec: spec, Target: 1}}); err != nil {
		t.Fatal(err)
	}
	fetched := func() bool {
		found, err := filepath.Glob(filepath.Join(config.StateDir, "unpacked", "*", "meta.json"))
		return err == nil && len(found) > 0
	}
	for until := time.Now().Add(30 * time.Second); !fetched(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal("it waits for its turn")
		}
	}
	turn.Release(true)
	if err := errors.Join(p.KeepPools(t.Context(), nil), p.Close()); err != nil {
		t.Error(err)
	}
}

// TestMemberWhoseAgentHangsIsNotClaimed: a started sandbox whose agent does not answer is not given
// to anybody.
func TestMemberWhoseAgentHangsIsNotClaimed(t *testing.T) {
	t.Parallel()
	config := testConfig(t)
	p := open(t, config)
	spec := providers.Spec{Template: "hangs", Network: providers.NetworkNone, Resources: local.DefaultResources()}
	keep := func(pools ...providers.Pool) {
		t.Helper()
		if err := p.KeepPools(t.Context(), pools); err != nil {
			t.Fatal(err)
		}
	}
	keep(providers.Pool{Template: "hangs", Spec: spec, Target: 1})
	defer func() {
		keep()
		if err := errors.Join(p.Delete(t.Context(), "one", providers.Condition{}), p.Close()); err != nil {
			t.Error(err)
		}
	}()
	for s := (providers.PoolStatus{}); s.Available == 0; time.Sleep(10 * time.Millisecond) {
		var err error
		if s, err = p.PoolStatus(t.Context(), "hangs"); err != nil {
			t.Fatal(err)
		}
	}
	local.FreezeUnclaimed(t, p, "hangs")
	spec.Hash = "h"
	info, err := providertest.Create(t.Context(), p, "one", spec)
	if err != nil || info.FromPool {
		t.Fatalf("create: %+v, %v", info, err)
	}
	if got := providertest.Shell(t, p, "one", "echo answers"); got != "answers\n" {
		t.Errorf("it prints %q", got)
	}
}

// TestClaimedWhileAServerStarts: a server that starts has listed a member that another
// server then claims. Its container is not a stray.
func TestClaimedWhileAServerStarts(t *testing.T) {
	p := opened(t, testConfig(t))
	fillPool(t, p)
	info, err := providertest.Create(t.Context(), p, "claimed", stormSpec())
	if err != nil || !info.FromPool {
		t.Fatalf("%+v, %v", info, err)
	}
	defer deleteSandbox(t, p, "claimed")
	if err := p.KeepPools(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if outcome, err := local.SettleContainer(t.Context(), p, "claimed"); err != nil || outcome != directory.Kept {
		t.Errorf("its container: %v, %v", outcome, err)
	}
	if got := providertest.Shell(t, p, "claimed", "echo alive"); got != "alive\n" {
		t.Errorf("it prints %q", got)
	}
}
