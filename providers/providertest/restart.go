package providertest

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandgate/sandgate/providers"
)

func anotherProviderFindsIt(ctx context.Context, t *testing.T, b *box) {
	name := name(t)
	spec := b.spec(name)
	spec.Labels = map[string]string{"a": "1"}
	b.create(ctx, t, name, spec)
	want, err := b.p.Get(ctx, name)
	if err != nil {
		t.Fatal(err)
	}
	other := b.h.Open(t)
	defer closeProvider(t, other)
	got, err := other.Get(ctx, name)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("another provider sees another sandbox (-one +other):\n%s", diff)
	}
	if said := hello(ctx, t, other, name).GetIncarnation(); said != want.Incarnation {
		t.Errorf("it reaches incarnation %q of %q", said, want.Incarnation)
	}
	if err := other.Delete(ctx, name, providers.Condition{}); err != nil {
		t.Fatal(err)
	}
	assertGone(ctx, t, b.p, name)
}

func closedProviderLeavesItRunning(ctx context.Context, t *testing.T, b *box) {
	name := name(t)
	first := b.h.Open(t)
	made, err := Create(ctx, first, name, b.spec(name))
	if err != nil {
		t.Fatal(err)
	}
	cleanUp(t, b.p, name)
	closeProvider(t, first)
	second := b.h.Open(t)
	defer closeProvider(t, second)
	if said := hello(ctx, t, second, name).GetIncarnation(); said != made.Incarnation {
		t.Errorf("after a restart it is incarnation %q, it was %q", said, made.Incarnation)
	}
	again, err := Create(ctx, second, name, b.spec(name))
	if err != nil || again.Created || again.Incarnation != made.Incarnation {
		t.Errorf("create after a restart: %+v, %v", again, err)
	}
}

// describe asks for an answer about every protection: silence is not a no.
func describe(ctx context.Context, t *testing.T, b *box) {
	d, err := b.p.Describe(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if d.Name == "" || d.Runtime == "" {
		t.Errorf("description without a name: %+v", d)
	}
	told := map[string]bool{}
	byDefault := map[string]int64{
		"memory": d.DefaultResources.MemoryBytes, "cpu": int64(d.DefaultResources.CPUMillis),
		"processes": int64(d.DefaultResources.MaxProcesses), "disk": d.DefaultResources.DiskBytes,
	}
	for _, e := range d.Enforcement {
		if n, limit := byDefault[e.Name]; limit && e.Enforced && n <= 0 {
			t.Errorf("%s is enforced, and a template that states none gets none", e.Name)
		}
		told[e.Name] = true
		if !e.Enforced && e.Detail == "" {
			t.Errorf("%s is not enforced, and nothing says why", e.Name)
		}
	}
	for _, name := range []string{"memory", "cpu", "processes", "disk", "network", "unprivileged", "seccomp", "kill_tree", "write_prefixes"} {
		if !told[name] {
			t.Errorf("nothing is said about %s", name)
		}
	}
}
