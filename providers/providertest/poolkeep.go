package providertest

import (
	"context"
	"errors"
	"testing"

	"github.com/sandgate/sandgate/providers"
)

func poolStatus(ctx context.Context, t *testing.T, b *poolBox) {
	if s, err := b.p.(providers.Pooler).PoolStatus(ctx, b.template); !isNotFound(err) {
		t.Errorf("status of a pool that nobody keeps: %+v, %v", s, err)
	}
	b.keep(ctx, t, b.p, b.pool(2))
	settled := func(active int) {
		t.Helper()
		want := providers.PoolStatus{Available: 2, Active: active, Total: 2 + active, Target: 2}
		b.until(ctx, t, b.p, func(s providers.PoolStatus) bool { return s == want })
	}
	settled(0)
	first, second := name(t), name(t)
	b.create(ctx, t, first, b.spec(first))
	settled(1)
	b.create(ctx, t, second, b.spec(second))
	settled(2)
	for _, name := range []string{first, second} {
		if err := b.p.Delete(ctx, name, providers.Condition{}); err != nil {
			t.Fatal(err)
		}
	}
	settled(0)
}

func poolHeals(ctx context.Context, t *testing.T, b *poolBox) {
	b.keep(ctx, t, b.p, b.pool(2))
	b.full(ctx, t, b.p)
	b.h.BreakUnclaimed(t, b.p, b.template)
	b.full(ctx, t, b.p)
	for range 2 {
		name := name(t)
		info := b.create(ctx, t, name, b.spec(name))
		if said := hello(ctx, t, b.p, name).GetIncarnation(); said != info.Incarnation {
			t.Errorf("incarnation %q answers for %q", said, info.Incarnation)
		}
	}
}

func poolDrains(ctx context.Context, t *testing.T, b *poolBox) {
	b.keep(ctx, t, b.p, b.pool(2))
	b.full(ctx, t, b.p)
	claimed := name(t)
	made := b.create(ctx, t, claimed, b.spec(claimed))
	b.keep(ctx, t, b.p)
	if s, err := b.p.(providers.Pooler).PoolStatus(ctx, b.template); !isNotFound(err) {
		t.Errorf("status of a pool that is no longer kept: %+v, %v", s, err)
	}
	// A substrate may delete in the background.
	for fromPool := true; fromPool; {
		name := name(t)
		fromPool = b.create(ctx, t, name, b.spec(name)).FromPool
	}
	if now, err := b.p.Get(ctx, claimed); err != nil || now.State != providers.StateActive || now.Incarnation != made.Incarnation {
		t.Errorf("the claimed one became %+v, %v", now, err)
	}
}

func poolOfAnotherSpec(ctx context.Context, t *testing.T, b *poolBox) {
	b.keep(ctx, t, b.p, b.pool(1))
	b.full(ctx, t, b.p)
	changed := b.pool(1)
	changed.Spec.Env = map[string]string{"GREETING": "hello"}
	b.keep(ctx, t, b.p, changed)
	b.full(ctx, t, b.p)
	fits, unfit := name(t), name(t)
	spec := b.spec(fits)
	spec.Env = map[string]string{"GREETING": "hello"}
	if !b.create(ctx, t, fits, spec).FromPool {
		t.Error("the pool's new spec is not claimed")
	}
	if got := Shell(t, b.p, fits, "echo $GREETING"); got != "hello\n" {
		t.Errorf("commands in it see %q", got)
	}
	b.full(ctx, t, b.p)
	if b.create(ctx, t, unfit, b.spec(unfit)).FromPool {
		t.Error("the pool's former spec is still claimed")
	}
}

func poolCannotBeKept(ctx context.Context, t *testing.T, b *poolBox) {
	b.keep(ctx, t, b.p, b.pool(1))
	b.full(ctx, t, b.p)
	bad := b.pool(1)
	bad.Spec.Options = []byte(`{"no_provider_has_this_option": true}`)
	for what, pools := range map[string][]providers.Pool{
		"of nothing":                {b.pool(0)},
		"twice":                     {b.pool(1), b.pool(1)},
		"of what cannot be created": {bad},
	} {
		if err := b.p.(providers.Pooler).KeepPools(ctx, pools); !errors.Is(err, providers.ErrInvalid) {
			t.Errorf("a pool %s: %v", what, err)
		}
	}
	if s := b.status(ctx, t, b.p); s.Available != 1 {
		t.Errorf("what was refused changed the pool to %+v", s)
	}
}

// poolIsAdopted: one provider goes and another comes.
func poolIsAdopted(ctx context.Context, t *testing.T, b *poolBox) {
	first := b.h.Open(t)
	b.keep(ctx, t, first, b.pool(2))
	b.full(ctx, t, first)
	closeProvider(t, first)
	b.keep(ctx, t, b.p, b.pool(2))
	if s := b.status(ctx, t, b.p); s.Available != 2 {
		t.Errorf("at its start the next provider counts %+v", s)
	}
	name := name(t)
	info := b.create(ctx, t, name, b.spec(name))
	if said := hello(ctx, t, b.p, name).GetIncarnation(); !info.FromPool || said != info.Incarnation {
		t.Errorf("incarnation %q answers for %+v", said, info)
	}
}

func unfitIsMade(ctx context.Context, t *testing.T, b *poolBox) {
	b.keep(ctx, t, b.p, b.pool(1))
	b.full(ctx, t, b.p)
	unfit := map[string]func(*providers.Spec){
		"env":               func(s *providers.Spec) { s.Env = map[string]string{"A": "1"} },
		"resources":         func(s *providers.Spec) { s.Resources.MemoryBytes += 64 << 20 },
		"working directory": func(s *providers.Spec) { s.WorkingDirectory = "/tmp" },
		"template":          func(s *providers.Spec) { s.Template = "default" },
	}
	for what, change := range b.h.Unfit {
		unfit[what] = change
	}
	for what, change := range unfit {
		name := name(t)
		spec := b.spec(name)
		change(&spec)
		if info := b.create(ctx, t, name, spec); info.FromPool || !info.Created {
			t.Errorf("with another %s: %+v", what, info)
		}
	}
	if s := b.status(ctx, t, b.p); s.Available != 1 || s.Active != 0 {
		t.Errorf("afterwards the pool counts %+v", s)
	}
}
