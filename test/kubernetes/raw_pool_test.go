package kubernetes

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sandgate/sandgate/providers"
	raw "github.com/sandgate/sandgate/providers/kubernetes"
	"github.com/sandgate/sandgate/providers/providertest"
)

// pooled waits until a pool's status is as it should be.
func pooled(t *testing.T, p *raw.Provider, template string, done func(providers.PoolStatus) bool) providers.PoolStatus {
	t.Helper()
	ctx := limit(t)
	for {
		status, err := p.PoolStatus(ctx, template)
		if err != nil {
			t.Fatalf("pool status: %v", err)
		}
		if done(status) {
			return status
		}
		select {
		case <-ctx.Done():
			t.Fatalf("the pool stays at %+v", status)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func full(s providers.PoolStatus) bool {
	return s.Available == s.Target && s.Total-s.Active == s.Target
}

// idle is full, and nothing of it is in use. A status may be some milliseconds
// old, so a deletion shows in it a little later.
func idle(s providers.PoolStatus) bool {
	return full(s) && s.Active == 0
}

func poolOf(target int) []providers.Pool {
	spec := rawSpec("", `{"setup_script": "echo ready >/workspace/setup"}`)
	spec.Tenant, spec.Hash, spec.Env = "", "", map[string]string{"FROM_TEMPLATE": "yes"}
	return []providers.Pool{{Template: "default", Spec: spec, Target: target}}
}

func poolSpec(id string) providers.Spec {
	spec := poolOf(1)[0].Spec
	spec.Tenant, spec.ID, spec.Hash, spec.TTL = "t", id, "hash of "+id, time.Hour
	spec.Labels = map[string]string{"thread": id}
	return spec
}

func TestRawPool(t *testing.T) {
	t.Parallel()
	r := newRawHarness(t)
	if _, err := r.PoolStatus(limit(t), "default"); !errors.Is(err, providers.ErrNotFound) {
		t.Errorf("status of no pool: %v", err)
	}
	if err := r.KeepPools(limit(t), poolOf(2)); err != nil {
		t.Fatal(err)
	}
	t.Run("S3-14 S3-17 S5-18 S5-21 it fills, gives and fills again", func(t *testing.T) {
		pooled(t, r.Provider, "default", full)
		if page, err := r.List(limit(t), providers.Query{Limit: 10}); err != nil || len(page.Sandboxes) > 0 {
			t.Errorf("unclaimed ones are listed: %+v, %v", page, err)
		}
		began := time.Now()
		info := r.made(t, "claimed", poolSpec("claimed"))
		t.Logf("a claim took %v", time.Since(began))
		if !info.FromPool || !info.Created || info.State != providers.StateActive {
			t.Errorf("claim %+v", info)
		}
		if got := r.shell(t, "claimed", "cat /workspace/setup; echo $FROM_TEMPLATE"); got != "ready\nyes\n" {
			t.Errorf("it says %q", got)
		}
		if pod := r.pod(t, r.config.Namespace, "claimed"); string(pod.UID) != info.Incarnation || pod.Labels["label.sandgate.dev/thread"] != "claimed" {
			t.Errorf("pod %+v", pod.ObjectMeta)
		}
		status := pooled(t, r.Provider, "default", func(s providers.PoolStatus) bool { return full(s) && s.Active == 1 })
		if status.Total != 3 || status.Target != 2 {
			t.Errorf("status %+v", status)
		}
		again, err := providertest.Create(limit(t), r, "claimed", poolSpec("claimed"))
		if err != nil || again.Created || !again.FromPool || again.Incarnation != info.Incarnation {
			t.Errorf("create again: %+v, %v", again, err)
		}
		if err := r.Delete(limit(t), "claimed", providers.Condition{Incarnation: info.Incarnation}); err != nil {
			t.Fatal(err)
		}
		pooled(t, r.Provider, "default", idle)
	})
	t.Run("S1-30 what a pod cannot be given later makes a cold start", func(t *testing.T) {
		spec := poolSpec("cold")
		spec.Env = map[string]string{"FROM_TEMPLATE": "no"}
		if info := r.made(t, "cold", spec); info.FromPool {
			t.Errorf("it is %+v", info)
		}
		if got := r.shell(t, "cold", "echo $FROM_TEMPLATE"); got != "no\n" {
			t.Errorf("it says %q", got)
		}
	})
	t.Run("S3-10 one claim per name and one name per claim, over two servers", func(t *testing.T) {
		pooled(t, r.Provider, "default", full)
		other := openRaw(t, r.config)
		defer func() { _ = other.Close() }()
		if err := other.KeepPools(limit(t), poolOf(2)); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		var mu sync.Mutex
		names := map[string]string{}
		for i := range 12 {
			name := fmt.Sprintf("race-%d", i%3)
			p := r.Provider
			if i%2 == 1 {
				p = other
			}
			wg.Go(func() {
				info, err := providertest.Create(limit(t), p, name, poolSpec(name))
				if err != nil {
					t.Errorf("%s: %v", name, err)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				if before, ok := names[name]; ok && before != info.Incarnation {
					t.Errorf("%s is %s and %s", name, before, info.Incarnation)
				}
				names[name] = info.Incarnation
			})
		}
		wg.Wait()
		seen := map[string]bool{}
		for name, incarnation := range names {
			if seen[incarnation] {
				t.Errorf("%s shares its pod", name)
			}
			seen[incarnation] = true
			if err := r.Delete(limit(t), name, providers.Condition{}); err != nil {
				t.Error(err)
			}
		}
		if status := pooled(t, other, "default", idle); status.Total != 2 {
			t.Errorf("two servers keep %+v", status)
		}
	})
	t.Run("a pod that goes is replaced", func(t *testing.T) {
		pooled(t, r.Provider, "default", full)
		pods := r.client.CoreV1().Pods(r.config.Namespace)
		list, err := pods.List(limit(t), meta.ListOptions{LabelSelector: "sandgate.dev/use=ready"})
		if err != nil || len(list.Items) == 0 {
			t.Fatalf("pods: %v, %v", list, err)
		}
		lost := list.Items[0]
		if err := pods.Delete(limit(t), lost.Name, meta.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		ctx := limit(t)
		for {
			list, err := pods.List(ctx, meta.ListOptions{LabelSelector: "sandgate.dev/use=ready"})
			if err != nil {
				t.Fatal(err)
			}
			if len(list.Items) == 2 && !slices.ContainsFunc(list.Items, func(p core.Pod) bool { return p.UID == lost.UID }) {
				break
			}
			time.Sleep(100 * time.Millisecond)
		}
		pooled(t, r.Provider, "default", idle)
	})
	t.Run("a smaller pool, and none", func(t *testing.T) {
		if err := r.KeepPools(limit(t), poolOf(1)); err != nil {
			t.Fatal(err)
		}
		pooled(t, r.Provider, "default", func(s providers.PoolStatus) bool { return s.Total == 1 && s.Available == 1 })
		if err := r.KeepPools(limit(t), nil); err != nil {
			t.Fatal(err)
		}
		ctx := limit(t)
		for {
			list, err := r.client.CoreV1().Pods(r.config.Namespace).List(ctx, meta.ListOptions{LabelSelector: "sandgate.dev/pool"})
			if err != nil {
				t.Fatal(err)
			}
			if len(list.Items) == 0 {
				break
			}
			time.Sleep(100 * time.Millisecond)
		}
	})
	t.Run("what cannot be pooled is refused", func(t *testing.T) {
		bad := poolOf(1)
		bad[0].Spec.TemplateOptions = []byte(`{"namespace_per_sandbox": true}`)
		if err := r.KeepPools(limit(t), bad); !errors.Is(err, providers.ErrInvalid) {
			t.Errorf("a namespace per sandbox: %v", err)
		}
	})
}

// TestRawLeftBehind: what a killed server had begun is finished by another.
func TestRawLeftBehind(t *testing.T) {
	t.Parallel()
	r := newRawHarness(t)
	r.made(t, "left", rawSpec("left", ""))
	// As a server leaves it that is killed in the middle of a deletion.
	records := r.client.CoreV1().ConfigMaps(r.config.Namespace)
	data := []byte(`{"metadata": {"labels": {"sandgate.dev/phase": "deleting"}}}`)
	if _, err := records.Patch(limit(t), "left", "application/merge-patch+json", data, meta.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	cm, err := records.Get(limit(t), "left", meta.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	cm.Data["record"] = replaceOnce(t, cm.Data["record"], `"phase":"active"`, `"phase":"deleting"`)
	if _, err := records.Update(limit(t), cm, meta.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	ctx := limit(t)
	for {
		_, err := r.Get(ctx, "left")
		if errors.Is(err, providers.ErrNotFound) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(200 * time.Millisecond)
	}
	r.nothingLeft(t, "left")
}

// TestRawPoolWaits: a pool's pod can be used as well after a time in which the
// agent would have hung up on a caller that says nothing.
func TestRawPoolWaits(t *testing.T) {
	t.Parallel()
	r := newRawHarness(t)
	if err := r.KeepPools(limit(t), poolOf(1)); err != nil {
		t.Fatal(err)
	}
	pooled(t, r.Provider, "default", full)
	agentPatience := time.NewTimer(12 * time.Second)
	<-agentPatience.C
	if info := r.made(t, "late", poolSpec("late")); !info.FromPool {
		t.Errorf("claim %+v", info)
	}
	if got := r.shell(t, "late", "echo here"); got != "here\n" {
		t.Errorf("it says %q", got)
	}
}
