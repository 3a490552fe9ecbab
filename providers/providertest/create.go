package providertest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandgate/sandgate/providers"
)

func createIsReady(ctx context.Context, t *testing.T, b *box) {
	name := name(t)
	spec := b.spec(name)
	before := time.Now().Add(-time.Second)
	info, conn, err := b.p.Create(ctx, name, spec)
	if err != nil {
		t.Fatal(err)
	}
	cleanUp(t, b.p, name)
	if conn == nil {
		t.Fatal("create returned no connection")
	}
	if got := helloOver(ctx, t, conn).GetIncarnation(); got != info.Incarnation {
		t.Errorf("the agent at the connection says %q, the provider %q", got, info.Incarnation)
	}
	if !info.Created || info.Name != name || info.State != providers.StateActive || info.Incarnation == "" {
		t.Errorf("create returned %+v", info)
	}
	if info.CreateTime.Before(before) || info.CreateTime.After(time.Now().Add(time.Second)) {
		t.Errorf("create time %v", info.CreateTime)
	}
	hello(ctx, t, b.p, name)
}

func createAgainReturnsTheSame(ctx context.Context, t *testing.T, b *box) {
	name := name(t)
	first := b.create(ctx, t, name, b.spec(name))
	again, err := Create(ctx, b.p, name, b.spec(name))
	if err != nil {
		t.Fatal(err)
	}
	if again.Created || again.Incarnation != first.Incarnation {
		t.Errorf("the second create made %+v after %+v", again, first)
	}
}

func createWithAnotherSpec(ctx context.Context, t *testing.T, b *box) {
	name := name(t)
	first := b.create(ctx, t, name, b.spec(name))
	other := b.spec(name)
	other.Hash = "another"
	if _, err := Create(ctx, b.p, name, other); !errors.Is(err, providers.ErrExists) {
		t.Errorf("create with another hash: %v", err)
	}
	if now, err := b.p.Get(ctx, name); err != nil || now.Incarnation != first.Incarnation {
		t.Errorf("afterwards it is %+v, %v", now, err)
	}
}

// createAll creates sandboxes of all names at once, each by the next of the providers.
func createAll(ctx context.Context, names []string, spec func(string) providers.Spec, by ...providers.Provider) ([]providers.Info, []error) {
	infos, errs := make([]providers.Info, len(names)), make([]error, len(names))
	var wg sync.WaitGroup
	for i, name := range names {
		wg.Go(func() { infos[i], errs[i] = Create(ctx, by[i%len(by)], name, spec(name)) })
	}
	wg.Wait()
	return infos, errs
}

// createRace asks through two providers at once, as two servers would.
func createRace(ctx context.Context, t *testing.T, b *box) {
	other := b.h.Open(t)
	defer closeProvider(t, other)
	name := name(t)
	cleanUp(t, b.p, name)
	const callers = 20
	infos, errs := createAll(ctx, slices.Repeat([]string{name}, callers), b.spec, b.p, other)
	created := 0
	for i := range callers {
		switch {
		case errs[i] != nil:
			t.Errorf("caller %d: %v", i, errs[i])
		case infos[i].Incarnation != infos[0].Incarnation || infos[i].State != providers.StateActive:
			t.Errorf("caller %d got %+v, caller 0 %+v", i, infos[i], infos[0])
		case infos[i].Created:
			created++
		}
	}
	if created != 1 {
		t.Errorf("%d callers were told that they made it", created)
	}
}

func failedCreateLeavesNothing(ctx context.Context, t *testing.T, b *box) {
	name := name(t)
	bad := b.spec(name)
	bad.Options = json.RawMessage(`{"no_provider_has_this_option": true}`)
	if _, err := Create(ctx, b.p, name, bad); !errors.Is(err, providers.ErrInvalid) {
		t.Errorf("create with an unknown option: %v", err)
	}
	assertGone(ctx, t, b.p, name)
	b.create(ctx, t, name, b.spec(name))
}

// cancelledCreateLeavesNothing cancels at different moments, so that some calls
// end while the substrate is at work.
func cancelledCreateLeavesNothing(ctx context.Context, t *testing.T, b *box) {
	name := name(t)
	cleanUp(t, b.p, name)
	started := time.Now()
	b.create(ctx, t, name, b.spec(name))
	whole := time.Since(started)
	if err := b.p.Delete(ctx, name, providers.Condition{}); err != nil {
		t.Fatal(err)
	}
	why := errors.New("the caller has had enough")
	const moments = 8
	for i := range moments {
		cancelled, cancel := context.WithCancelCause(ctx)
		timer := time.AfterFunc(whole*time.Duration(i)/moments, func() { cancel(why) })
		_, err := Create(cancelled, b.p, name, b.spec(name))
		timer.Stop()
		cancel(nil)
		if err == nil {
			if err := b.p.Delete(ctx, name, providers.Condition{}); err != nil {
				t.Fatalf("delete: %v", err)
			}
			continue
		}
		if !errors.Is(err, why) {
			t.Errorf("cancelled after %d/%d of a creation: %v does not wrap the cause", i, moments, err)
		}
		assertGone(ctx, t, b.p, name)
	}
	b.create(ctx, t, name, b.spec(name))
	hello(ctx, t, b.p, name)
}

func specIsKeptWithoutSecrets(ctx context.Context, t *testing.T, b *box) {
	name := name(t)
	spec := b.spec(name)
	spec.Env = map[string]string{"TOKEN": "a secret"}
	spec.Labels = map[string]string{"thread": "7"}
	spec.Access = []byte{0, 1, 2, 255}
	spec.TTL, spec.IdleTTL = time.Hour, 90*time.Minute
	b.create(ctx, t, name, spec)
	info, err := b.p.Get(ctx, name)
	if err != nil {
		t.Fatal(err)
	}
	want := spec
	want.Env = map[string]string{"TOKEN": ""}
	// JSON may come back with other blanks.
	compact := cmp.Transformer("compact", func(raw json.RawMessage) string {
		var out bytes.Buffer
		if json.Compact(&out, raw) != nil {
			return string(raw)
		}
		return out.String()
	})
	if diff := cmp.Diff(want, info.Spec, compact); diff != "" {
		t.Errorf("the spec changed (-sent +kept):\n%s", diff)
	}
}
