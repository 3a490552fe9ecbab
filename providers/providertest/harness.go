package providertest

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandgate/sandgate/providers"
)

// Harness is what the suite needs to know of a provider.
type Harness struct {
	// Open returns a provider over a substrate that lasts for the whole test.
	// The suite closes it.
	Open func(t *testing.T) providers.Provider
	// Spec returns what sandboxes are made from: complete but for tenant, id and
	// hash. Limits must be set where the provider can hold them.
	Spec func() providers.Spec
	// Except names the cases that do not apply, with the reason.
	Except map[string]string
	// Pick chooses the cases to run by their names. Nil: all.
	Pick func(name string) bool
}

func (h Harness) picks(name string) bool { return h.Pick == nil || h.Pick(name) }

// caseTimeout bounds one case. It is far beyond what any takes, also where many
// of them share a small machine.
const caseTimeout = 5 * time.Minute

// Run holds a provider to the whole suite.
func Run(t *testing.T, h Harness) {
	t.Helper()
	checkExceptions(t, h.Except, caseNames())
	p := h.Open(t)
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	for _, c := range lifecycleCases {
		if !h.picks(c.name) || excepted(t, h.Except, c.name) {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), caseTimeout)
			defer cancel()
			c.run(ctx, t, &box{h: h, p: p})
		})
	}
	runSandboxCases(t, h, func(t *testing.T, change func(*providers.Spec)) Sandbox {
		return newSandbox(t, h, p, change)
	})
}

type lifecycleCase struct {
	name string
	run  func(context.Context, *testing.T, *box)
}

var lifecycleCases = []lifecycleCase{
	{"C02_incarnation_is_the_agents", incarnationIsTheAgents},
	{"C02_new_incarnation_after_delete", newIncarnationAfterDelete},
	{"C02_delete_of_another_incarnation", deleteOfAnotherIncarnation},
	{"C20_create_is_ready", createIsReady},
	{"C20_create_again_returns_the_same", createAgainReturnsTheSame},
	{"C20_create_with_another_spec", createWithAnotherSpec},
	{"C20_create_race", createRace},
	{"C20_failed_create_leaves_nothing", failedCreateLeavesNothing},
	{"C20_cancelled_create_leaves_nothing", cancelledCreateLeavesNothing},
	{"C20_spec_is_kept_without_secrets", specIsKeptWithoutSecrets},
	{"C21_update", update},
	{"C21_concurrent_updates", concurrentUpdates},
	{"C21_not_found_everywhere", notFoundEverywhere},
	{"C21_delete_frees_the_name", deleteFreesTheName},
	{"C21_deleted_once", deletedOnce},
	{"C21_delete_spares_what_is_in_use", deleteSparesWhatIsInUse},
	{"C21_delete_races_with_activity", deleteRacesWithActivity},
	{"C22_list_pages", listPages},
	{"C22_list_filters", listFilters},
	{"C21_list_of_what_is_due", listDue},
	{"C22_list_refuses_a_bad_token", listRefusesABadToken},
	{"C23_another_provider_finds_it", anotherProviderFindsIt},
	{"C23_closed_provider_leaves_it_running", closedProviderLeavesItRunning},
	{"C23_dial_many", dialMany},
	{"C23_close_does_not_disturb", closeDoesNotDisturb},
	{"C23_delete_with_open_connections", deleteWithOpenConnections},
	{"C24_describe", describe},
	{"C33_ledger_loses_no_change", ledgerLosesNoChange},
}

func caseNames() map[string]bool {
	names := sandboxCaseNames()
	for _, c := range lifecycleCases {
		names[c.name] = true
	}
	return names
}

func checkExceptions(t *testing.T, except map[string]string, names map[string]bool) {
	t.Helper()
	for name, reason := range except {
		if !names[name] {
			t.Errorf("exception %q is no case's name", name)
		}
		if reason == "" {
			t.Errorf("exception %q has no reason", name)
		}
	}
}

// excepted reports whether a case does not apply, and logs the reason. Such a
// case is no skipped test: there is nothing that another machine could run.
func excepted(t *testing.T, except map[string]string, name string) bool {
	t.Helper()
	reason, ok := except[name]
	if ok {
		t.Logf("%s does not apply: %s", name, reason)
	}
	return ok
}

// box is what lifecycle cases work with.
type box struct {
	h Harness
	p providers.Provider
}

var serial atomic.Int64

// name makes a name that no other case has.
func name(t *testing.T) string {
	t.Helper()
	slug := strings.ToLower(t.Name()[strings.LastIndexByte(t.Name(), '/')+1:])
	slug = strings.Trim(strings.ReplaceAll(slug, "_", "-"), "-")
	if len(slug) > 40 {
		slug = strings.Trim(slug[:40], "-")
	}
	return fmt.Sprintf("pt-%s-%d", slug, serial.Add(1))
}

// spec fills in what the suite decides.
func (b *box) spec(name string) providers.Spec {
	s := b.h.Spec()
	s.Tenant, s.ID, s.Hash = "providertest", name, "hash of "+name
	if s.Template == "" {
		s.Template = "default"
	}
	return s
}

// create makes a sandbox that goes with the test.
func (b *box) create(ctx context.Context, t *testing.T, name string, spec providers.Spec) providers.Info {
	t.Helper()
	info, err := Create(ctx, b.p, name, spec)
	if err != nil {
		t.Fatalf("create %s: %v", name, err)
	}
	cleanUp(t, b.p, name)
	return info
}

// Create creates a sandbox for a test that needs no connection to its agent, and
// closes the one that the provider returns.
func Create(ctx context.Context, p providers.Provider, name string, spec providers.Spec) (providers.Info, error) {
	info, conn, err := p.Create(ctx, name, spec)
	if err != nil {
		return info, err
	}
	if conn == nil {
		if info.Created {
			return info, fmt.Errorf("create %s: no connection to its agent", name)
		}
		return info, nil
	}
	_ = conn.Close()
	return info, nil
}

// cleanUp deletes sandboxes at the end of the test, all at once: a substrate may
// take seconds for each.
func cleanUp(t *testing.T, p providers.Provider, names ...string) {
	t.Helper()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), caseTimeout)
		defer cancel()
		var all sync.WaitGroup
		for _, name := range names {
			all.Go(func() {
				if err := p.Delete(ctx, name, providers.Condition{}); err != nil && !isNotFound(err) {
					t.Errorf("delete %s: %v", name, err)
				}
			})
		}
		all.Wait()
	})
}
