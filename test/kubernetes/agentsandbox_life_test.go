package kubernetes

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	sandgate "github.com/sandgate/sandgate/clients/go"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/providertest"
	"github.com/sandgate/sandgate/server"
	"github.com/sandgate/sandgate/server/policy"
)

// asServe serves the provider with one template.
func asServe(t *testing.T, p providers.Provider, options string) *sandgate.Client {
	t.Helper()
	template := policy.DefaultTemplate()
	template.ProviderOptions, template.Network = json.RawMessage(options), providers.NetworkFull
	return serve(t, server.Config{Provider: p, Templates: []policy.Template{template}})
}

// The controller makes a pod that vanished anew, empty, under the same name.
func TestAgentSandboxReplaced(t *testing.T) {
	t.Parallel()
	r, p := asOpen(t, nil)
	client := asServe(t, p, `{"sandbox_template": "plain"}`)
	box, _, err := client.Create(limit(t), sandgate.CreateRequest{ID: "thread-1"})
	if err != nil {
		t.Fatal(err)
	}
	run := func(script string) (*sandgate.Result, error) {
		return box.Execute(limit(t), sandgate.ExecuteRequest{Shell: script})
	}
	if _, err := run("echo kept > /workspace/file"); err != nil {
		t.Fatal(err)
	}
	before, err := box.Info(limit(t))
	if err != nil {
		t.Fatal(err)
	}
	var name string
	for _, pod := range r.pods() {
		name = pod.Name
	}
	r.deletePod(t, name)
	t.Run("C2 a call that expects the former incarnation is SANDBOX_REPLACED", func(t *testing.T) {
		for deadline := time.Now().Add(waitTimeout); ; time.Sleep(100 * time.Millisecond) {
			got, err := run("cat /workspace/file")
			if errors.Is(err, sandgate.ErrSandboxReplaced) {
				break
			}
			// Until the processes are gone, it is still the former one.
			if err == nil && string(got.Stdout) != "kept\n" {
				t.Fatal("it ran in an empty place")
			}
			if time.Now().After(deadline) {
				t.Fatal(err)
			}
		}
		now, err := p.Get(limit(t), name)
		if err != nil || now.Incarnation == before.GetIncarnation() || now.State != providers.StateActive {
			t.Errorf("after %s: %+v, %v", before.GetIncarnation(), now, err)
		}
	})
	t.Run("C2 one that expects none runs in the new one", func(t *testing.T) {
		got, err := client.Sandbox("thread-1").Execute(limit(t), sandgate.ExecuteRequest{Shell: "ls /workspace; echo here"})
		if err != nil || string(got.Stdout) != "here\n" {
			t.Errorf("%+v, %v", got, err)
		}
	})
	t.Run("C2 an agent that ended is followed by another incarnation", func(t *testing.T) {
		box := client.Sandbox("thread-1")
		before, err := p.Get(limit(t), name)
		if err != nil {
			t.Fatal(err)
		}
		// From outside: a command may not signal the agent.
		r.exec(t, name, "sh", "-c", "kill -9 $(cut -d' ' -f1 /tmp/.sandgate/agent.pid)")
		for deadline := time.Now().Add(waitTimeout); ; time.Sleep(100 * time.Millisecond) {
			got, err := box.Execute(limit(t), sandgate.ExecuteRequest{Shell: "echo here"})
			if err == nil && string(got.Stdout) == "here\n" {
				break
			}
			if time.Now().After(deadline) {
				t.Fatal(err)
			}
		}
		if now, err := p.Get(limit(t), name); err != nil || now.Incarnation == before.Incarnation {
			t.Errorf("after %+v: %+v, %v", before, now, err)
		}
	})
}

// durable makes a SandboxTemplate whose sandboxes may have a volume at /data.
func (r *asHarness) durable(name string) {
	r.t.Helper()
	r.template(name, restricted(image(), func(s *core.PodSpec) {
		// A directory of the host has no fsGroup.
		root, no := int64(0), false
		s.SecurityContext.RunAsUser, s.SecurityContext.RunAsNonRoot = &root, &no
		s.Containers[0].VolumeMounts = append(s.Containers[0].VolumeMounts, core.VolumeMount{Name: "data", MountPath: "/data"})
	}), map[string]any{"volumeClaimTemplatesPolicy": "Allowed"})
}

func TestAgentSandboxSuspend(t *testing.T) {
	t.Parallel()
	r, p := asOpen(t, nil)
	r.durable("durable")
	t.Run("S1-29 C21 suspend and resume with a volume of its own", func(t *testing.T) {
		spec := asSpec(`{"sandbox_template": "durable", "volume_claim_templates": [{"name": "data", "storage": "16Mi"}]}`)
		before := asCreate(t, p, "durable", spec)
		providertest.Shell(t, p, "durable", "echo kept > /data/file; echo lost > /workspace/file")
		for range 2 {
			info, err := p.Suspend(limit(t), "durable")
			if err != nil || info.State != providers.StateSuspended || info.Incarnation != before.Incarnation {
				t.Fatalf("%+v, %v", info, err)
			}
		}
		if pods := r.pods(); len(pods) > 0 {
			t.Errorf("suspended, it has pod %s", pods[0].Name)
		}
		if conn, err := p.Dial(limit(t), "durable"); !errors.Is(err, providers.ErrNotActive) {
			t.Errorf("dial: %v, %v", conn, err)
		}
		for range 2 {
			info, conn, err := p.Resume(limit(t), "durable")
			if conn != nil {
				_ = conn.Close()
			}
			if err != nil || info.State != providers.StateActive || info.Incarnation == before.Incarnation {
				t.Fatalf("%+v, %v", info, err)
			}
		}
		if out := providertest.Shell(t, p, "durable", "cat /data/file; ls /workspace"); out != "kept\n" {
			t.Errorf("%q", out)
		}
	})
	t.Run("S1-29 volumes that the template does not allow fail fast", func(t *testing.T) {
		spec := asSpec(`{"sandbox_template": "plain", "volume_claim_templates": [{"name": "data", "storage": "16Mi"}]}`)
		_, err := providertest.Create(limit(t), p, "volumes", named(spec, "volumes"))
		if !errors.Is(err, providers.ErrForbidden) || !strings.Contains(err.Error(), "VolumeClaimTemplatesError") {
			t.Errorf("%v", err)
		}
		r.assertNothingLeft(t, "volumes")
	})
	t.Run("C21 what is suspended can be deleted", func(t *testing.T) {
		asCreate(t, p, "asleep", asSpec(`{"sandbox_template": "plain"}`))
		if _, err := p.Suspend(limit(t), "asleep"); err != nil {
			t.Fatal(err)
		}
		if err := p.Delete(limit(t), "asleep", providers.Condition{}); err != nil {
			t.Fatal(err)
		}
		r.assertNothingLeft(t, "asleep")
	})
}

func TestAgentSandboxWrap(t *testing.T) {
	t.Parallel()
	r, p := asOpen(t, nil)
	r.pool("theirs", "plain", 1)
	r.make(sandboxClaims, "SandboxClaim", "theirs-claim", map[string]any{"warmPoolRef": map[string]any{"name": "theirs"}})
	r.make(sandboxes, "Sandbox", "theirs-sandbox", map[string]any{"podTemplate": map[string]any{"spec": asFields(t, restricted(image()))}})
	const options = `{"sandbox_template": "plain", "existing_claims": ["theirs-*", "mine"], "existing_sandboxes": ["theirs-*"]}`
	existing := func(request string) providers.Spec {
		spec := asSpec(options)
		spec.Options = json.RawMessage(request)
		return spec
	}
	annotation := func(kind, name string) string {
		resource := sandboxClaims
		if kind == "Sandbox" {
			resource = sandboxes
		}
		u, err := r.object(resource, name)
		if err != nil {
			t.Fatal(err)
		}
		return u.GetAnnotations()["sandgate.dev/adopted-by"]
	}
	for _, c := range []struct{ row, kind, target, request string }{
		{"S1-25 a SandboxClaim that the caller made", "SandboxClaim", "theirs-claim", `{"existing_claim": "theirs-claim"}`},
		{"S2-1 a Sandbox that exists", "Sandbox", "theirs-sandbox", `{"existing_sandbox": "theirs-sandbox"}`},
	} {
		t.Run(c.row, func(t *testing.T) {
			name := strings.ToLower(c.kind) + "-wrap"
			info := asCreate(t, p, name, existing(c.request))
			if !info.Created || info.State != providers.StateActive {
				t.Errorf("%+v", info)
			}
			if again := asCreate(t, p, name, existing(c.request)); again.Created || again.Incarnation != info.Incarnation {
				t.Errorf("%+v after %+v", again, info)
			}
			providertest.Shell(t, p, name, "echo hello > /workspace/"+name)
			if by := annotation(c.kind, c.target); by != name {
				t.Errorf("it is marked as adopted by %q", by)
			}
			if _, err := providertest.Create(limit(t), p, "second", named(existing(c.request), "second")); !errors.Is(err, providers.ErrForbidden) {
				t.Errorf("a second sandbox adopted it as well: %v", err)
			}
			if got, err := p.Update(limit(t), name, providers.Change{SetLabels: map[string]string{"a": "b"}}); err != nil || got.Spec.Labels["a"] != "b" {
				t.Errorf("%+v, %v", got, err)
			}
			if err := p.Delete(limit(t), name, providers.Condition{Incarnation: info.Incarnation}); err != nil {
				t.Fatal(err)
			}
			if _, err := p.Get(limit(t), name); !errors.Is(err, providers.ErrNotFound) {
				t.Errorf("%v", err)
			}
			if by := annotation(c.kind, c.target); by != "" {
				t.Errorf("it is still marked as adopted by %q", by)
			}
			// The caller owns its lifetime: what was in it is there.
			next := asCreate(t, p, name+"-2", existing(c.request))
			if next.Incarnation == info.Incarnation {
				t.Error("another wrap joins the former one's agent")
			}
			if out := providertest.Shell(t, p, name+"-2", "cat /workspace/"+name); out != "hello\n" {
				t.Errorf("%q", out)
			}
			if err := p.Delete(limit(t), name+"-2", providers.Condition{}); err != nil {
				t.Fatal(err)
			}
		})
	}
	t.Run("only what the template lists, and nobody else's", func(t *testing.T) {
		asCreate(t, p, "mine", asSpec(options))
		for what, request := range map[string]string{
			"a name that is not listed":      `{"existing_claim": "other"}`,
			"a sandbox of Sandgate":          `{"existing_claim": "mine"}`,
			"a Sandbox that a claim owns":    fmt.Sprintf(`{"existing_sandbox": %q}`, r.sandboxOf(t, "theirs-claim")),
			"a claim under a Sandbox's name": `{"existing_sandbox": "mine"}`,
		} {
			if _, err := providertest.Create(limit(t), p, "thief", named(existing(request), "thief")); !errors.Is(err, providers.ErrForbidden) {
				t.Errorf("%s: %v", what, err)
			}
		}
		// What the tenant adopted and deleted above still holds its files.
		spec := named(existing(`{"existing_sandbox": "theirs-sandbox"}`), "thief")
		spec.Tenant = "another"
		if _, err := providertest.Create(limit(t), p, "thief", spec); !errors.Is(err, providers.ErrForbidden) {
			t.Errorf("another tenant's files: %v", err)
		}
	})
	t.Run("C22 lists hold both, in the order of names", func(t *testing.T) {
		asCreate(t, p, "aaa", existing(`{"existing_claim": "theirs-claim"}`))
		asCreate(t, p, "zzz", existing(`{"existing_sandbox": "theirs-sandbox"}`))
		for size := 1; size <= 4; size++ {
			var got []string
			for q := (providers.Query{Limit: size}); ; {
				page, err := p.List(limit(t), q)
				if err != nil {
					t.Fatal(err)
				}
				if len(page.Sandboxes) > size {
					t.Errorf("a page of %d where %d were asked for", len(page.Sandboxes), size)
				}
				for _, info := range page.Sandboxes {
					got = append(got, info.Name)
				}
				if q.Token = page.Next; page.Next == "" {
					break
				}
			}
			if fmt.Sprint(got) != "[aaa mine zzz]" {
				t.Errorf("in pages of %d: %v", size, got)
			}
		}
	})
	t.Run("delete_existing deletes it", func(t *testing.T) {
		if err := p.Delete(limit(t), "zzz", providers.Condition{}); err != nil {
			t.Fatal(err)
		}
		asCreate(t, p, "last", existing(`{"existing_sandbox": "theirs-sandbox", "delete_existing": true}`))
		if err := p.Delete(limit(t), "last", providers.Condition{}); err != nil {
			t.Fatal(err)
		}
		if _, err := r.object(sandboxes, "theirs-sandbox"); !kerrors.IsNotFound(err) {
			t.Errorf("%v", err)
		}
	})
}

// sandboxOf is the Sandbox that a claim was given.
func (r *asHarness) sandboxOf(t *testing.T, claim string) string {
	t.Helper()
	u, err := r.object(sandboxClaims, claim)
	if err != nil {
		t.Fatal(err)
	}
	name, _, _ := unstructured.NestedString(u.Object, "status", "sandbox", "name")
	return name
}

// TestAgentSandboxPools holds the pools that the provider makes to the suite.
func TestAgentSandboxPools(t *testing.T) {
	t.Parallel()
	r := newASHarness(t)
	r.template("suite", restricted(image()), map[string]any{"envVarsInjectionPolicy": "Allowed"})
	providertest.RunPool(t, providertest.PoolHarness{
		Harness: providertest.Harness{
			Open: func(t *testing.T) providers.Provider { return r.open(t) },
			Spec: func() providers.Spec { return asSpec(`{"sandbox_template": "suite"}`) },
			Pick: part(t, 3, "pools"),
			Except: map[string]string{
				"C22_pool_of_another_spec": "a pool's sandboxes have the environment of their SandboxTemplate; one with env is refused",
			},
		},
		BreakUnclaimed: func(t *testing.T, _ providers.Provider, _ string) {
			for _, pod := range r.pods() {
				if pod.Labels["agents.x-k8s.io/warm-pool-sandbox"] != "" && pod.DeletionTimestamp == nil {
					r.exec(t, pod.Name, "sh", "-c", "kill -9 $(cut -d' ' -f1 /tmp/.sandgate/agent.pid) || true")
				}
			}
		},
	})
}

// An operator's pool keeps its size, and its pods get their agent ahead of time.
func TestAgentSandboxOperatorsPool(t *testing.T) {
	t.Parallel()
	r, p := asOpen(t, nil)
	r.pool("theirs", "plain", 1)
	spec := asSpec(`{"pool": "theirs"}`)
	t.Run("S5-18 C9 the status of a pool by name", func(t *testing.T) {
		if err := p.KeepPools(limit(t), []providers.Pool{{Template: spec.Template, Spec: spec, Target: 3}}); err != nil {
			t.Fatal(err)
		}
		status, err := p.PoolStatus(limit(t), spec.Template)
		if err != nil || status != (providers.PoolStatus{Available: 1, Total: 1, Target: 1}) {
			t.Errorf("%+v, %v", status, err)
		}
		r.settle(t, 1)
		if info := asCreate(t, p, "claimed", spec); !info.FromPool {
			t.Errorf("%+v", info)
		}
		r.settle(t, 2)
		status, err = p.PoolStatus(limit(t), spec.Template)
		if err != nil || status != (providers.PoolStatus{Available: 1, Active: 1, Total: 2, Target: 1}) {
			t.Errorf("%+v, %v", status, err)
		}
	})
	if err := p.KeepPools(limit(t), nil); err != nil {
		t.Fatal(err)
	}
	pool, err := r.object(sandboxPools, "theirs")
	if err != nil {
		t.Fatal(err)
	}
	if n, _, _ := unstructured.NestedInt64(pool.Object, "spec", "replicas"); n != 1 {
		t.Errorf("the operator's pool was resized to %d", n)
	}
}
