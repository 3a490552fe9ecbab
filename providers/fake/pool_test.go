package fake_test

import (
	"context"
	"errors"
	"os"
	"sync/atomic"
	"testing"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/fake"
	"github.com/sandgate/sandgate/providers/providertest"
)

func TestPool(t *testing.T) {
	dir, err := os.MkdirTemp("", "sg")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	// Every other sandbox of a pool cannot be started.
	var fills atomic.Int64
	m := fake.NewMachine(dir, fake.Config{Hook: func(_ context.Context, method, _ string) error {
		if method == "fill" && fills.Add(1)%2 == 0 {
			return errors.New("no room")
		}
		return nil
	}})
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	providertest.RunPool(t, providertest.PoolHarness{
		Harness: providertest.Harness{
			Open: func(*testing.T) providers.Provider { return m.Open() },
			Spec: func() providers.Spec { return providers.Spec{Network: providers.NetworkNone} },
		},
		BreakUnclaimed: func(t *testing.T, _ providers.Provider, template string) {
			if err := m.BreakUnclaimed(template); err != nil {
				t.Error(err)
			}
		},
		Unfit: map[string]func(*providers.Spec){
			"network": func(s *providers.Spec) { s.Network = providers.NetworkFull },
			"image":   func(s *providers.Spec) { s.Image = "another" },
		},
	})
}
