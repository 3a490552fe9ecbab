package providertest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandgate/sandgate/providers"
)

func update(ctx context.Context, t *testing.T, b *box) {
	name := name(t)
	spec := b.spec(name)
	spec.Labels = map[string]string{"keep": "1", "change": "1", "drop": "1"}
	spec.TTL, spec.IdleTTL = time.Hour, time.Hour
	created := b.create(ctx, t, name, spec)

	idle, active := 2*time.Hour, created.LastActivity.Add(time.Minute)
	got, err := b.p.Update(ctx, name, providers.Change{
		SetLabels: map[string]string{"change": "2", "new": "1"}, RemoveLabels: []string{"drop", "missing"},
		IdleTTL: &idle, LastActivity: active,
	})
	if err != nil {
		t.Fatal(err)
	}
	check := func(what string, got providers.Info) {
		t.Helper()
		want := map[string]string{"keep": "1", "change": "2", "new": "1"}
		if diff := cmp.Diff(want, got.Spec.Labels); diff != "" {
			t.Errorf("%s: labels (-want +got):\n%s", what, diff)
		}
		if got.Spec.TTL != time.Hour || got.Spec.IdleTTL != idle || !got.LastActivity.Equal(active) {
			t.Errorf("%s: ttl %v, idle ttl %v, last activity %v, want %v, %v, %v", what, got.Spec.TTL, got.Spec.IdleTTL, got.LastActivity, time.Hour, idle, active)
		}
		if !got.CreateTime.Equal(created.CreateTime) || got.Incarnation != created.Incarnation || got.Spec.Hash != spec.Hash {
			t.Errorf("%s: it became another: %+v after %+v", what, got, created)
		}
	}
	check("update", got)
	if _, err := b.p.Update(ctx, name, providers.Change{LastActivity: active.Add(-time.Minute)}); err != nil {
		t.Fatal(err)
	}
	got, err = b.p.Get(ctx, name)
	if err != nil {
		t.Fatal(err)
	}
	check("get after an older activity", got)
	none := time.Duration(0)
	if got, err = b.p.Update(ctx, name, providers.Change{TTL: &none}); err != nil || got.Spec.TTL != 0 || got.Spec.IdleTTL != idle {
		t.Errorf("update to no ttl: %+v, %v", got, err)
	}
}

func concurrentUpdates(ctx context.Context, t *testing.T, b *box) {
	other := b.h.Open(t)
	defer closeProvider(t, other)
	name := name(t)
	created := b.create(ctx, t, name, b.spec(name))
	const writers = 20
	want := make(map[string]string, writers)
	var wg sync.WaitGroup
	for i := range writers {
		p := b.p
		if i%2 == 1 {
			p = other
		}
		key := fmt.Sprintf("writer-%d", i)
		want[key] = "was here"
		wg.Go(func() {
			_, err := p.Update(ctx, name, providers.Change{
				SetLabels: map[string]string{key: "was here"}, LastActivity: created.LastActivity.Add(time.Duration(i) * time.Second),
			})
			if err != nil {
				t.Errorf("writer %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	got, err := b.p.Get(ctx, name)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got.Spec.Labels); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	if latest := created.LastActivity.Add((writers - 1) * time.Second); !got.LastActivity.Equal(latest) {
		t.Errorf("last activity %v, want the latest, %v", got.LastActivity, latest)
	}
}
