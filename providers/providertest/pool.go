package providertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandgate/sandgate/providers"
)

// PoolHarness is what the pool cases need to know of a providers.Pooler.
type PoolHarness struct {
	Harness
	// BreakUnclaimed ends the agents of all unclaimed sandboxes of a template,
	// as a crash would.
	BreakUnclaimed func(t *testing.T, p providers.Provider, template string)
	// Unfit holds changes of a spec that no started sandbox can follow, by name,
	// beside those of environment, resources and working directory.
	Unfit map[string]func(*providers.Spec)
}

// RunPool holds a provider that keeps pools to the pool cases, beside Run.
func RunPool(t *testing.T, h PoolHarness) {
	t.Helper()
	names := map[string]bool{}
	for _, c := range poolCases {
		names[c.name] = true
	}
	checkExceptions(t, h.Except, names)
	for i, c := range poolCases {
		if !h.picks(c.name) || excepted(t, h.Except, c.name) {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), caseTimeout)
			defer cancel()
			b := &poolBox{h: h, template: fmt.Sprintf("pool-%d", i)}
			b.box = box{h: h.Harness, p: h.Open(t)}
			t.Cleanup(func() { closeProvider(t, b.p) })
			t.Cleanup(func() { b.keep(context.WithoutCancel(ctx), t, b.p) })
			c.run(ctx, t, b)
		})
	}
}

type poolBox struct {
	box
	h        PoolHarness
	template string
}

var poolCases = []struct {
	name string
	run  func(context.Context, *testing.T, *poolBox)
}{
	{"C22_claim", claimFromPool},
	{"C22_claim_is_as_clean_as_a_new_one", claimIsClean},
	{"C22_unclaimed_are_in_no_list", unclaimedAreHidden},
	{"C22_claims_race", claimsRace},
	{"C22_claims_of_one_name_race", claimsOfOneNameRace},
	{"C22_cancelled_claim", cancelledClaim},
	{"C22_pool_status", poolStatus},
	{"C22_pool_heals", poolHeals},
	{"C22_pool_drains", poolDrains},
	{"C22_pool_of_another_spec", poolOfAnotherSpec},
	{"C22_pool_cannot_be_kept", poolCannotBeKept},
	{"C23_pool_is_adopted", poolIsAdopted},
	{"C22_what_does_not_fit_is_made", unfitIsMade},
}

// spec is that of a request that names the template and nothing else.
func (b *poolBox) spec(name string) providers.Spec {
	s := b.box.spec(name)
	s.Template = b.template
	return s
}

func (b *poolBox) pool(target int) providers.Pool {
	s := b.spec("")
	s.Tenant, s.ID, s.Hash = "", "", ""
	return providers.Pool{Template: b.template, Spec: s, Target: target}
}

func (b *poolBox) keep(ctx context.Context, t *testing.T, p providers.Provider, pools ...providers.Pool) {
	t.Helper()
	if err := p.(providers.Pooler).KeepPools(ctx, pools); err != nil {
		t.Fatalf("keep pools: %v", err)
	}
}

func (b *poolBox) status(ctx context.Context, t *testing.T, p providers.Provider) providers.PoolStatus {
	t.Helper()
	s, err := p.(providers.Pooler).PoolStatus(ctx, b.template)
	if err != nil {
		t.Fatalf("pool status: %v", err)
	}
	return s
}

// full waits until the pool has what it should.
func (b *poolBox) full(ctx context.Context, t *testing.T, p providers.Provider) providers.PoolStatus {
	t.Helper()
	return b.until(ctx, t, p, func(s providers.PoolStatus) bool { return s.Available == s.Target })
}

func (b *poolBox) until(ctx context.Context, t *testing.T, p providers.Provider, ok func(providers.PoolStatus) bool) providers.PoolStatus {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		s := b.status(ctx, t, p)
		if s.Total < s.Available+s.Active {
			t.Errorf("the status does not add up: %+v", s)
		}
		if ok(s) {
			return s
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("the pool stays at %+v", s)
		}
	}
}

func claimFromPool(ctx context.Context, t *testing.T, b *poolBox) {
	b.keep(ctx, t, b.p, b.pool(1))
	b.full(ctx, t, b.p)
	name := name(t)
	spec := b.spec(name)
	spec.Labels = map[string]string{"thread": "7"}
	spec.TTL, spec.IdleTTL = time.Hour, 90*time.Minute
	spec.Access = []byte{0, 1, 255}
	before := time.Now()
	made := b.create(ctx, t, name, spec)
	if !made.FromPool || !made.Created || made.State != providers.StateActive || made.Name != name {
		t.Errorf("create returned %+v", made)
	}
	// A substrate may keep whole seconds.
	if made.CreateTime.Before(before.Truncate(time.Second)) || made.LastActivity.Before(made.CreateTime) {
		t.Errorf("claimed after %v, it is of %v, active %v", before, made.CreateTime, made.LastActivity)
	}
	if want := made.CreateTime.Add(time.Hour); !made.ExpireTime().Equal(want) {
		t.Errorf("it expires at %v, an hour after the claim is %v", made.ExpireTime(), want)
	}
	if said := hello(ctx, t, b.p, name).GetIncarnation(); said != made.Incarnation {
		t.Errorf("its agent is of incarnation %q, it of %q", said, made.Incarnation)
	}
	got, err := b.p.Get(ctx, name)
	if err != nil {
		t.Fatal(err)
	}
	if !got.FromPool || got.Incarnation != made.Incarnation || !got.CreateTime.Equal(made.CreateTime) {
		t.Errorf("get after %+v: %+v", made, got)
	}
	sent, kept := spec, got.Spec
	kept.TemplateOptions, kept.Options, sent.TemplateOptions, sent.Options = nil, nil, nil, nil
	if diff := cmp.Diff(sent, kept); diff != "" {
		t.Errorf("the spec changed (-sent +kept):\n%s", diff)
	}
	again, err := Create(ctx, b.p, name, b.spec(name))
	if err != nil || again.Created || !again.FromPool || again.Incarnation != made.Incarnation {
		t.Errorf("create again: %+v, %v", again, err)
	}
	other := b.spec(name)
	other.Hash = "another"
	if _, err := Create(ctx, b.p, name, other); !errors.Is(err, providers.ErrExists) {
		t.Errorf("create with another hash: %v", err)
	}
	if err := b.p.Delete(ctx, name, providers.Condition{Incarnation: made.Incarnation}); err != nil {
		t.Fatal(err)
	}
	assertGone(ctx, t, b.p, name)
	b.full(ctx, t, b.p)
	if next := b.create(ctx, t, name, spec); !next.FromPool || next.Incarnation == made.Incarnation {
		t.Errorf("the next one after %+v: %+v", made, next)
	}
}

// claimIsClean compares a claimed sandbox with one that was made for its name.
func claimIsClean(ctx context.Context, t *testing.T, b *poolBox) {
	// Counted first and without a pipe: processes of the look itself come and go.
	const look = `test ! -e /.sandgate/state || { set -- /proc/[0-9]*; echo $# processes; }
		id -un 2>/dev/null; id -gn 2>/dev/null; umask; stat -c '%A %U %G' .; ls -A .; env | cut -d= -f1 | sort
		test ! -e /.sandgate/state || stat -c '%n %A %U %G' / /tmp /var/tmp /home/* /workspace /.sandgate/* /tmp/* /workspace/* 2>&1`
	cold, pooled := name(t), name(t)
	if b.create(ctx, t, cold, b.spec(cold)).FromPool {
		t.Error("a sandbox came from a pool that nobody keeps")
	}
	b.keep(ctx, t, b.p, b.pool(1))
	b.full(ctx, t, b.p)
	if !b.create(ctx, t, pooled, b.spec(pooled)).FromPool {
		t.Fatal("it is not from the pool")
	}
	if diff := cmp.Diff(Shell(t, b.p, cold, look), Shell(t, b.p, pooled, look)); diff != "" {
		t.Errorf("they differ (-made +claimed):\n%s", diff)
	}
}

func unclaimedAreHidden(ctx context.Context, t *testing.T, b *poolBox) {
	before := listAll(ctx, t, b.p, providers.Query{})
	b.keep(ctx, t, b.p, b.pool(2))
	b.full(ctx, t, b.p)
	if after := listAll(ctx, t, b.p, providers.Query{}); len(after) != len(before) {
		t.Errorf("%d sandboxes are listed with a full pool, %d before it: %+v", len(after), len(before), after)
	}
}

// claimsRace asks for more than there are, through two providers at once.
func claimsRace(ctx context.Context, t *testing.T, b *poolBox) {
	const callers, kept = 20, 6
	b.keep(ctx, t, b.p, b.pool(kept))
	other := b.h.Open(t)
	defer closeProvider(t, other)
	b.full(ctx, t, b.p)
	names := make([]string, callers)
	for i := range names {
		names[i] = name(t)
	}
	cleanUp(t, b.p, names...)
	infos, errs := createAll(ctx, names, b.spec, b.p, other)
	seen, claimed := map[string]bool{}, 0
	for i, info := range infos {
		if errs[i] != nil {
			t.Errorf("caller %d: %v", i, errs[i])
			continue
		}
		if seen[info.Incarnation] {
			t.Errorf("%+v was given to two callers", info)
		}
		seen[info.Incarnation] = true
		if info.FromPool {
			claimed++
		}
		if said := hello(ctx, t, other, info.Name).GetIncarnation(); said != info.Incarnation {
			t.Errorf("%s is incarnation %q, and %q answers", info.Name, info.Incarnation, said)
		}
	}
	if claimed < kept {
		t.Errorf("%d of %d callers got one of %d", claimed, callers, kept)
	}
	b.until(ctx, t, b.p, func(s providers.PoolStatus) bool { return s.Available == kept && s.Active == claimed })
}

func claimsOfOneNameRace(ctx context.Context, t *testing.T, b *poolBox) {
	const callers = 10
	b.keep(ctx, t, b.p, b.pool(3))
	other := b.h.Open(t)
	defer closeProvider(t, other)
	b.full(ctx, t, b.p)
	name := name(t)
	cleanUp(t, b.p, name)
	infos, errs := createAll(ctx, slices.Repeat([]string{name}, callers), b.spec, b.p, other)
	created := 0
	for i, info := range infos {
		if errs[i] != nil || info.Incarnation != infos[0].Incarnation || !info.FromPool {
			t.Errorf("caller %d: %+v, %v; caller 0: %+v", i, info, errs[i], infos[0])
		}
		if info.Created {
			created++
		}
	}
	if s := b.full(ctx, t, b.p); created != 1 || s.Active != 1 {
		t.Errorf("%d callers made it, and the pool counts %+v", created, s)
	}
}

func cancelledClaim(ctx context.Context, t *testing.T, b *poolBox) {
	b.keep(ctx, t, b.p, b.pool(1))
	b.full(ctx, t, b.p)
	name := name(t)
	why := errors.New("the caller has had enough")
	ended, cancel := context.WithCancelCause(ctx)
	cancel(why)
	if _, err := Create(ended, b.p, name, b.spec(name)); !errors.Is(err, why) {
		t.Errorf("create with an ended context: %v", err)
	}
	assertGone(ctx, t, b.p, name)
	if s := b.status(ctx, t, b.p); s.Available != 1 || s.Active != 0 {
		t.Errorf("afterwards the pool counts %+v", s)
	}
}
