package providertest

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandgate/sandgate/providers"
)

// listAll follows the pages to their end.
func listAll(ctx context.Context, t *testing.T, p providers.Provider, q providers.Query) []providers.Info {
	t.Helper()
	if q.Limit == 0 {
		q.Limit = 100
	}
	var out []providers.Info
	seen := map[string]bool{}
	for {
		page, err := p.List(ctx, q)
		if err != nil {
			t.Fatalf("list: %v", err)
		}
		if len(page.Sandboxes) > q.Limit {
			t.Fatalf("a page of %d where %d were asked for", len(page.Sandboxes), q.Limit)
		}
		out = append(out, page.Sandboxes...)
		if page.Next == "" {
			return out
		}
		if seen[page.Next] {
			t.Fatalf("the token %q came twice", page.Next)
		}
		seen[page.Next] = true
		q.Token = page.Next
	}
}

func names(infos []providers.Info) []string {
	out := make([]string, len(infos))
	for i, info := range infos {
		out[i] = info.Name
	}
	return out
}

// createForTenant creates n sandboxes of a tenant of their own.
func createForTenant(ctx context.Context, t *testing.T, b *box, n int) (tenant string, made []string) {
	t.Helper()
	tenant = name(t)
	for i := range n {
		name := name(t)
		spec := b.spec(name)
		spec.Tenant = tenant
		spec.Labels = map[string]string{"all": "yes", "parity": []string{"even", "odd"}[i%2]}
		b.create(ctx, t, name, spec)
		made = append(made, name)
	}
	slices.Sort(made)
	return tenant, made
}

func listPages(ctx context.Context, t *testing.T, b *box) {
	tenant, made := createForTenant(ctx, t, b, 5)
	for limit := 1; limit <= 6; limit++ {
		got := names(listAll(ctx, t, b.p, providers.Query{Tenant: tenant, Limit: limit}))
		if diff := cmp.Diff(made, got); diff != "" {
			t.Errorf("pages of %d (-made +listed):\n%s", limit, diff)
		}
	}
	// What goes between two pages must not shift the others.
	page, err := b.p.List(ctx, providers.Query{Tenant: tenant, Limit: 2})
	if err != nil || len(page.Sandboxes) == 0 {
		t.Fatalf("first page: %+v, %v", page, err)
	}
	first := names(page.Sandboxes)
	if err := b.p.Delete(ctx, first[0], providers.Condition{}); err != nil {
		t.Fatal(err)
	}
	rest := names(listAll(ctx, t, b.p, providers.Query{Tenant: tenant, Limit: 2, Token: page.Next}))
	if diff := cmp.Diff(made, append(first, rest...)); diff != "" {
		t.Errorf("after a deletion between pages (-made +listed):\n%s", diff)
	}
}

func listFilters(ctx context.Context, t *testing.T, b *box) {
	tenant, made := createForTenant(ctx, t, b, 3)
	for _, c := range []struct {
		what string
		q    providers.Query
		want int
	}{
		{"one label", providers.Query{Labels: map[string]string{"all": "yes"}}, 3},
		{"two labels", providers.Query{Labels: map[string]string{"all": "yes", "parity": "odd"}}, 1},
		{"another value", providers.Query{Labels: map[string]string{"all": "no"}}, 0},
		{"a missing label", providers.Query{Labels: map[string]string{"none": ""}}, 0},
		{"active", providers.Query{States: []providers.State{providers.StateActive}}, 3},
		{"failed or creating", providers.Query{States: []providers.State{providers.StateFailed, providers.StateCreating}}, 0},
	} {
		c.q.Tenant = tenant
		if got := listAll(ctx, t, b.p, c.q); len(got) != c.want {
			t.Errorf("%s: %v of %v", c.what, names(got), made)
		}
	}
	if got := listAll(ctx, t, b.p, providers.Query{Tenant: "nobody"}); len(got) != 0 {
		t.Errorf("another tenant has %v", names(got))
	}
}

func listRefusesABadToken(ctx context.Context, t *testing.T, b *box) {
	_, err := b.p.List(ctx, providers.Query{Limit: 1, Token: "not a token!"})
	if !errors.Is(err, providers.ErrTokenInvalid) {
		t.Errorf("list with a malformed token: %v", err)
	}
}

// listDue: a reaper asks for those whose time has come by then.
func listDue(ctx context.Context, t *testing.T, b *box) {
	tenant := name(t)
	made := map[string]string{}
	for what, change := range map[string]func(*providers.Spec){
		"idle":    func(s *providers.Spec) { s.TTL, s.IdleTTL = 0, time.Hour },
		"aged":    func(s *providers.Spec) { s.TTL, s.IdleTTL = 2*time.Hour, 0 },
		"forever": func(s *providers.Spec) { s.TTL, s.IdleTTL = 0, 0 },
	} {
		made[what] = name(t)
		spec := b.spec(made[what])
		spec.Tenant = tenant
		change(&spec)
		b.create(ctx, t, made[what], spec)
	}
	for after, want := range map[time.Duration][]string{
		time.Minute: {}, 90 * time.Minute: {made["idle"]}, 3 * time.Hour: {made["aged"], made["idle"]},
	} {
		for _, limit := range []int{1, 100} {
			got := names(listAll(ctx, t, b.p, providers.Query{Tenant: tenant, DueBy: time.Now().Add(after), Limit: limit}))
			slices.Sort(want)
			if !slices.Equal(got, want) {
				t.Errorf("due in %v, in pages of %d: %v, want %v", after, limit, got, want)
			}
		}
	}
	none := time.Duration(0)
	if _, err := b.p.Update(ctx, made["idle"], providers.Change{IdleTTL: &none}); err != nil {
		t.Fatal(err)
	}
	if got := listAll(ctx, t, b.p, providers.Query{Tenant: tenant, DueBy: time.Now().Add(90 * time.Minute)}); len(got) > 0 {
		t.Errorf("without a lifetime it is due: %v", names(got))
	}
}
