package providertest

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandgate/sandgate/providers"
)

func isNotFound(err error) bool { return errors.Is(err, providers.ErrNotFound) }

func closeProvider(t *testing.T, p providers.Provider) {
	t.Helper()
	if err := p.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
}

// assertGone fails unless nothing is known of the name.
func assertGone(ctx context.Context, t *testing.T, p providers.Provider, name string) {
	t.Helper()
	if info, err := p.Get(ctx, name); !isNotFound(err) {
		t.Errorf("get of what should not be there: %+v, %v", info, err)
	}
	for _, info := range listAll(ctx, t, p, providers.Query{}) {
		if info.Name == name {
			t.Errorf("list has what should not be there: %+v", info)
		}
	}
}

func notFoundEverywhere(ctx context.Context, t *testing.T, b *box) {
	const name = "pt-never-was"
	_, getErr := b.p.Get(ctx, name)
	_, updateErr := b.p.Update(ctx, name, providers.Change{SetLabels: map[string]string{"a": "b"}})
	conn, dialErr := b.p.Dial(ctx, name)
	if conn != nil {
		_ = conn.Close()
	}
	for call, err := range map[string]error{
		"get": getErr, "update": updateErr, "dial": dialErr, "delete": b.p.Delete(ctx, name, providers.Condition{}),
		"delete of an incarnation": b.p.Delete(ctx, name, providers.Condition{Incarnation: "x"}),
	} {
		if !isNotFound(err) {
			t.Errorf("%s: %v", call, err)
		}
	}
}

func deleteFreesTheName(ctx context.Context, t *testing.T, b *box) {
	name := name(t)
	first := b.create(ctx, t, name, b.spec(name))
	if err := b.p.Delete(ctx, name, providers.Condition{Incarnation: first.Incarnation}); err != nil {
		t.Fatal(err)
	}
	assertGone(ctx, t, b.p, name)
	if conn, err := b.p.Dial(ctx, name); !isNotFound(err) {
		t.Errorf("dial: %v, %v", conn, err)
	}
	other := b.spec(name)
	other.Hash = "another"
	b.create(ctx, t, name, other)
	hello(ctx, t, b.p, name)
}

func deletedOnce(ctx context.Context, t *testing.T, b *box) {
	name := name(t)
	b.create(ctx, t, name, b.spec(name))
	var deleted atomic.Int32
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			switch err := b.p.Delete(ctx, name, providers.Condition{}); {
			case err == nil:
				deleted.Add(1)
			case !isNotFound(err):
				t.Errorf("delete: %v", err)
			}
		})
	}
	wg.Wait()
	if n := deleted.Load(); n != 1 {
		t.Errorf("%d calls deleted it", n)
	}
	assertGone(ctx, t, b.p, name)
}

func newIncarnationAfterDelete(ctx context.Context, t *testing.T, b *box) {
	name := name(t)
	first := b.create(ctx, t, name, b.spec(name))
	if err := b.p.Delete(ctx, name, providers.Condition{}); err != nil {
		t.Fatal(err)
	}
	if second := b.create(ctx, t, name, b.spec(name)); !second.Created || second.Incarnation == first.Incarnation {
		t.Errorf("after %+v came %+v", first, second)
	}
}

func deleteOfAnotherIncarnation(ctx context.Context, t *testing.T, b *box) {
	name := name(t)
	b.create(ctx, t, name, b.spec(name))
	if err := b.p.Delete(ctx, name, providers.Condition{Incarnation: "another"}); !errors.Is(err, providers.ErrReplaced) {
		t.Errorf("delete of another incarnation: %v", err)
	}
	hello(ctx, t, b.p, name)
}

func deleteSparesWhatIsInUse(ctx context.Context, t *testing.T, b *box) {
	name := name(t)
	created := b.create(ctx, t, name, b.spec(name))
	used := created.LastActivity.Add(time.Second)
	if _, err := b.p.Update(ctx, name, providers.Change{LastActivity: used}); err != nil {
		t.Fatal(err)
	}
	for what, since := range map[string]time.Time{
		"its creation": created.LastActivity, "just before its use": used.Add(-time.Millisecond),
	} {
		err := b.p.Delete(ctx, name, providers.Condition{Incarnation: created.Incarnation, IdleSince: since})
		if !errors.Is(err, providers.ErrInUse) {
			t.Errorf("delete if idle since %s: %v", what, err)
		}
	}
	hello(ctx, t, b.p, name)
	if err := b.p.Delete(ctx, name, providers.Condition{Incarnation: "another", IdleSince: created.LastActivity}); err == nil {
		t.Error("another incarnation that is in use was deleted")
	}
	if err := b.p.Delete(ctx, name, providers.Condition{Incarnation: created.Incarnation, IdleSince: used}); err != nil {
		t.Errorf("delete if idle since its last use: %v", err)
	}
	assertGone(ctx, t, b.p, name)
}

// deleteRacesWithActivity: what was told that its activity counts keeps its
// sandbox, and what was deleted tells nobody so.
func deleteRacesWithActivity(ctx context.Context, t *testing.T, b *box) {
	other := b.h.Open(t)
	defer closeProvider(t, other)
	const rounds = 6
	var wg sync.WaitGroup
	for range rounds {
		name := name(t)
		created := b.create(ctx, t, name, b.spec(name))
		var updated, deleted error
		var both sync.WaitGroup
		both.Go(func() {
			_, updated = other.Update(ctx, name, providers.Change{LastActivity: created.LastActivity.Add(time.Second)})
		})
		both.Go(func() {
			deleted = b.p.Delete(ctx, name, providers.Condition{Incarnation: created.Incarnation, IdleSince: created.LastActivity})
		})
		wg.Go(func() {
			both.Wait()
			switch {
			case updated == nil && errors.Is(deleted, providers.ErrInUse):
			case deleted == nil && (isNotFound(updated) || errors.Is(updated, providers.ErrNotActive)):
			default:
				t.Errorf("the update returned %v, the delete %v", updated, deleted)
			}
		})
	}
	wg.Wait()
}
