//go:build linux

package local_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/local"
	"github.com/sandgate/sandgate/providers/providertest"
)

// victimConfig is set in the process that TestKilledServerLeavesSandboxesWholeOrGone kills.
const victimConfig = "SANDGATE_TEST_VICTIM"

// TestKilledServerLeavesSandboxesWholeOrGone kills a provider's process at random moments of creations and
// deletions. Whatever the moment, the next one must find every sandbox either
// whole or not at all, and be able to make and delete all of them.
func TestKilledServerLeavesSandboxesWholeOrGone(t *testing.T) {
	t.Run("C23 made", func(t *testing.T) { testKilled(t, "runc", nil) })
	// Claims and fillings are cut off too.
	t.Run("C23 claimed", func(t *testing.T) {
		testKilled(t, "runc", []providers.Pool{{Template: "storm", Target: 5, Spec: stormSpec()}})
	})
	t.Run("C23 made by gVisor", func(t *testing.T) { testKilled(t, "runsc", nil) })
	t.Run("C23 claimed with gVisor", func(t *testing.T) {
		testKilled(t, "runsc", []providers.Pool{{Template: "storm", Target: 3, Spec: stormSpec()}})
	})
}

func stormSpec() providers.Spec {
	return providers.Spec{Template: "storm", Network: providers.NetworkNone, Resources: local.DefaultResources()}
}

func testKilled(t *testing.T, runtime string, pools []providers.Pool) {
	config := testConfigOf(t, runtime)
	raw, err := json.Marshal(victim{StateDir: config.StateDir, AgentPath: agentFile(t), CgroupParent: config.CgroupParent, Runtime: runtime, Pools: pools})
	if err != nil {
		t.Fatal(err)
	}
	rounds := 12
	switch {
	case testing.Short():
		rounds = 3
	case runtime == "runsc":
		rounds = 6 // each takes three times as long
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	var survivor string
	fromPool := 0
	for round := range rounds {
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
		cmd.Env = append(os.Environ(), victimConfig+"="+string(raw))
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		// The first line reports that it has begun.
		if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		within := 250 * time.Millisecond
		if runtime == "runsc" {
			within *= 3
		}
		if len(pools) > 0 && round%2 == 0 {
			within = 20 * time.Millisecond // claims are that fast
		}
		time.Sleep(time.Duration(random.Int64N(int64(within))))
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()

		p := open(t, config)
		page := settledList(t, p)
		seen := map[string]bool{}
		for _, info := range page.Sandboxes {
			if seen[info.Incarnation] {
				t.Errorf("round %d: two sandboxes are incarnation %s", round, info.Incarnation)
			}
			seen[info.Incarnation] = true
			if info.FromPool {
				fromPool++
			}
			if info.State != providers.StateActive {
				t.Errorf("round %d: %s is %v: %s", round, info.Name, info.State, info.Message)
				continue
			}
			if got := providertest.Shell(t, p, info.Name, "echo alive"); got != "alive\n" {
				t.Errorf("round %d: %s prints %q", round, info.Name, got)
			}
			if info.Name == "survivor" {
				if survivor != "" && info.Incarnation != survivor {
					t.Errorf("round %d: the sandbox that is never deleted is another one", round)
				}
				survivor = info.Incarnation
				continue
			}
			if err := p.Delete(t.Context(), info.Name, providers.Condition{}); err != nil {
				t.Errorf("round %d: delete %s: %v", round, info.Name, err)
			}
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
	if survivor == "" {
		t.Error("the sandbox that is never deleted was never found")
	}
	if len(pools) > 0 && fromPool == 0 {
		t.Error("no sandbox was ever claimed")
	}
	p := open(t, config)
	if err := p.Delete(t.Context(), "survivor", providers.Condition{}); err != nil {
		t.Error(err)
	}
	if err := p.KeepPools(t.Context(), nil); err != nil {
		t.Error(err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

// settledList lists the sandboxes once those that the server before left half
// done are gone, which takes a while on a busy machine.
func settledList(t *testing.T, p *local.Provider) providers.Page {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		page, err := p.List(t.Context(), providers.Query{Limit: 100})
		if err != nil {
			t.Fatal(err)
		}
		settled := !slices.ContainsFunc(page.Sandboxes, func(i providers.Info) bool { return i.State != providers.StateActive })
		if settled || time.Now().After(deadline) {
			return page
		}
	}
}

// victim configures the process that is killed.
type victim struct {
	StateDir, AgentPath, CgroupParent, Runtime string
	Pools                                      []providers.Pool
	DieAt                                      string // a step; empty: it is killed from outside
	Recover                                    bool   // die while recovering
}

// beVictim makes and deletes until it is killed.
func beVictim(raw string) error {
	var v victim
	if err := json.Unmarshal([]byte(raw), &v); err != nil {
		return err
	}
	if v.DieAt != "" {
		return beDoomed(v)
	}
	ctx := context.Background()
	p, err := local.New(ctx, local.Config{StateDir: v.StateDir, Agent: agentAt(v.AgentPath), CgroupParent: v.CgroupParent, Runtime: v.Runtime})
	if err != nil {
		return err
	}
	spec := stormSpec()
	spec.Hash = "h"
	if err := p.KeepPools(ctx, v.Pools); err != nil {
		return err
	}
	for _, pool := range v.Pools {
		for s := (providers.PoolStatus{}); s.Available < pool.Target; time.Sleep(10 * time.Millisecond) {
			if s, err = p.PoolStatus(ctx, pool.Template); err != nil {
				return err
			}
		}
	}
	if _, err := providertest.Create(ctx, p, "survivor", spec); err != nil {
		return err
	}
	_, _ = os.Stdout.WriteString("begun\n")
	failed := make(chan error)
	for i := range 3 {
		name := fmt.Sprintf("storm-%d", i)
		go func() {
			for {
				if _, err := providertest.Create(ctx, p, name, spec); err != nil {
					failed <- err
				}
				if err := p.Delete(ctx, name, providers.Condition{}); err != nil && !errors.Is(err, providers.ErrNotFound) {
					failed <- err
				}
			}
		}()
	}
	return <-failed
}

// TestSandboxWithoutItsAgentIsFailed: a sandbox whose agent has exited is FAILED and stays until
// deleted.
func TestSandboxWithoutItsAgentIsFailed(t *testing.T) {
	for _, runtime := range []string{"runc", "runsc"} {
		t.Run(runtime, func(t *testing.T) { testAgentEnds(t, runtime) })
	}
}

func testAgentEnds(t *testing.T, runtime string) {
	config := testConfigOf(t, runtime)
	assertReaped(t)
	p := open(t, config)
	defer func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}()
	spec := providers.Spec{Hash: "h", Network: providers.NetworkNone, Resources: local.DefaultResources()}
	if _, err := providertest.Create(t.Context(), p, "ends", spec); err != nil {
		t.Fatal(err)
	}
	if err := local.KillInit(p, "ends"); err != nil {
		t.Fatal(err)
	}
	info, err := p.Get(t.Context(), "ends")
	if err != nil || info.State != providers.StateFailed || info.Message == "" || info.Failure != providers.FailureUnknown {
		t.Errorf("get: %+v, %v", info, err)
	}
	var inactive *providers.NotActiveError
	if conn, err := p.Dial(t.Context(), "ends"); !errors.As(err, &inactive) || inactive.State != providers.StateFailed {
		t.Errorf("dial: %v, %v", conn, err)
	}
	if _, err := providertest.Create(t.Context(), p, "ends", spec); !errors.As(err, &inactive) || inactive.State != providers.StateFailed {
		t.Errorf("create: %v", err)
	}
	if err := p.Delete(t.Context(), "ends", providers.Condition{}); err != nil {
		t.Error(err)
	}
}
