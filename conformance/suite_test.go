package conformance

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	sandgate "github.com/sandgate/sandgate/clients/go"
	"github.com/sandgate/sandgate/conformance/goprogram/build"
)

// The suite passes on the real server, and leaves nothing. The hop to the client
// is cut in the end-to-end tests, which have the time.
func TestSuitePassesOnTheRealServerAndLeavesNothing(t *testing.T) {
	address, provider := realServer(t)
	s := open(t, Options{Address: address, Seed: 1, Scale: 0.01, CutInner: provider.cut, GoProgram: build.GoProgram(t)})
	t.Cleanup(func() {
		if err := s.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	for _, c := range Cases() {
		if c.Long || strings.HasSuffix(c.Name, clientHop) && c.Name != "C07_cut_after_started_client_hop" {
			continue
		}
		if reason := s.Skips(c); reason != "" {
			t.Logf("%s does not apply: %s", c.Name, reason)
			continue
		}
		t.Run(c.Name, func(t *testing.T) { s.Run(t.Context(), t, c) })
	}
}

func TestOpenWithoutAServer(t *testing.T) {
	_, err := Open(t.Context(), Options{Address: "unix:///none/s.sock"})
	if !errors.Is(err, sandgate.ErrUnavailable) {
		t.Errorf("got %v", err)
	}
}

// A leftover sandbox or command is reported and ended.
func TestCloseSaysWhatIsLeft(t *testing.T) {
	address, _ := realServer(t)
	s := open(t, Options{Address: address})
	sandbox := s.sandbox(t.Context(), t, nil)
	if _, err := sandbox.Start(t.Context(), sandgate.ExecuteRequest{Shell: "sleep 1000", Detach: true}); err != nil {
		t.Fatal(err)
	}
	err := s.Close(t.Context())
	if err == nil || !strings.Contains(err.Error(), `runs on: "sleep 1000"`) {
		t.Errorf("got %v", err)
	}
	again := open(t, Options{Address: address})
	for info, err := range again.client.List(t.Context(), sandgate.ListRequest{}) {
		t.Errorf("there is still %v, %v", info, err)
	}
	if err := again.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestNames(t *testing.T) {
	form := regexp.MustCompile(`^C(0[1-9]|1\d|2\d|3[01])_[A-Za-z0-9_]+$`)
	seen := map[string]bool{}
	for _, c := range Cases() {
		if !form.MatchString(c.Name) || seen[c.Name] || strings.Contains(c.Title(), "_") {
			t.Errorf("the case %q, %q", c.Name, c.Title())
		}
		seen[c.Name] = true
	}
	c := Case{Name: "C07_cut_mid_chunk_client_hop"}
	if c.Contract() != 7 || c.Title() != "C7 cut mid chunk, client hop" {
		t.Errorf("%d, %q", c.Contract(), c.Title())
	}
}

func names(cases []Case) []string {
	var out []string
	for _, c := range cases {
		out = append(out, c.Name)
	}
	return out
}

func TestChoose(t *testing.T) {
	choose := func(f Filter) []string {
		t.Helper()
		cases, err := f.Choose(Cases())
		if err != nil {
			t.Fatal(err)
		}
		return names(cases)
	}
	all := choose(Filter{Long: true})
	if !slices.Equal(all, names(Cases())) {
		t.Error("the long ones and the others are not all")
	}
	for pattern, want := range map[string]string{"C2": "C02_", "c02": "C02_", "C7": "C07_", "^C7 cut": "C07_cut", "C12_slow": "C12_slow"} {
		got := choose(Filter{Pattern: pattern, Long: true})
		if len(got) == 0 || slices.ContainsFunc(got, func(name string) bool { return !strings.HasPrefix(name, want) }) {
			t.Errorf("%s chooses %v", pattern, got)
		}
	}
	group := choose(Filter{Group: "programs", Long: true})
	if len(group) < 9 || slices.ContainsFunc(group, func(name string) bool { return !strings.HasPrefix(name, "C24_program_") }) {
		t.Errorf("the group programs is %v", group)
	}
	var parts []string
	for part := 1; part <= 3; part++ {
		parts = append(parts, choose(Filter{Part: part, Parts: 3, Seed: 7, Long: true})...)
	}
	slices.Sort(parts)
	slices.Sort(all)
	if !slices.Equal(parts, all) {
		t.Error("the parts are not the whole")
	}
	fifth := choose(Filter{Fraction: 0.2, Seed: 7})
	if n := len(choose(Filter{})); len(fifth) != (n+4)/5 {
		t.Errorf("a fifth of %d is %d", n, len(fifth))
	}
	if !slices.Equal(fifth, choose(Filter{Fraction: 0.2, Seed: 7})) || slices.Equal(fifth, choose(Filter{Fraction: 0.2, Seed: 8})) {
		t.Error("the seed does not decide")
	}
	for _, f := range []Filter{{Pattern: "("}, {Fraction: 2}, {Fraction: -1}, {Part: 4, Parts: 3}, {Part: 0, Parts: 3}, {Part: -1, Parts: 3}} {
		if got, err := f.Choose(Cases()); err == nil {
			t.Errorf("%+v chooses %v", f, names(got))
		}
	}
}

// bare is a suite that has no server, for cases that need none.
func bare() *Suite {
	return &Suite{info: &sandgate.ServerInfo{}, opts: Options{CaseTimeout: time.Minute}}
}

func TestRunOne(t *testing.T) {
	var order []string
	for _, c := range []struct {
		name   string
		run    func(context.Context, T, *Suite)
		want   Outcome
		reason string
	}{
		{"ok", func(context.Context, T, *Suite) {}, OK, ""},
		{"error", func(_ context.Context, t T, _ *Suite) { t.Errorf("bad %d", 1) }, Failed, "bad 1"},
		{"fatal", func(_ context.Context, t T, _ *Suite) { t.Fatalf("bad"); panic("not reached") }, Failed, "bad"},
		{"skip", func(_ context.Context, t T, _ *Suite) { t.Skipf("not here"); panic("not reached") }, Skipped, "not here"},
		{"panic", func(context.Context, T, *Suite) { panic("oh") }, Failed, "the case panicked: oh"},
		{"failing cleanup", func(_ context.Context, t T, _ *Suite) { t.Cleanup(func() { t.Fatalf("left over") }) }, Failed, "left over"},
		{"cleanups", func(_ context.Context, t T, _ *Suite) {
			t.Cleanup(func() { order = append(order, "first") })
			t.Cleanup(func() { order = append(order, "second"); t.Fatalf("stop") })
			t.Cleanup(func() {
				if t.Context().Err() == nil {
					t.Errorf("the context outlives the case")
				}
			})
		}, Failed, "stop"},
	} {
		got := bare().runOne(t.Context(), Case{Name: "C01_x", run: c.run})
		if got.Outcome != c.want || !strings.HasPrefix(strings.Join(got.Reasons, "|"), c.reason) {
			t.Errorf("%s: %+v", c.name, got)
		}
	}
	if !slices.Equal(order, []string{"second", "first"}) {
		t.Errorf("cleanups were called in the order %v", order)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	got := bare().runOne(ctx, Case{Name: "C01_x", run: func(ctx context.Context, t T, _ *Suite) {
		cancel(errGone)
		<-ctx.Done()
		t.Errorf("it was cut short")
	}})
	if got.Outcome != Stopped {
		t.Errorf("a case that was stopped: %+v", got)
	}
	needy := bare().runOne(t.Context(), Case{Name: "C01_x", needs: []string{"memory"}})
	if needy.Outcome != Skipped {
		t.Errorf("a case whose needs are not met: %+v", needy)
	}
}
