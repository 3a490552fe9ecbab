package kubernetes

import (
	"errors"
	"testing"

	kerrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sandgate/sandgate/providers"
)

func TestRawNamespacePerSandbox(t *testing.T) {
	t.Parallel()
	r := newRawHarness(t)
	options := `{"namespace_per_sandbox": true, "namespace_quota": {"pods": "1", "limits.memory": "2Gi"},
		"namespace_limits": [{"type": "Container", "default": {"cpu": "1"}}]}`
	name := "s5-11-" + r.config.Namespace
	t.Run("S3-9 S5-11 a namespace with quota, limits and policy of its own", func(t *testing.T) {
		spec := rawSpec("s5-11", options)
		spec.Env = map[string]string{"A": "b"}
		info := r.made(t, name, spec)
		if got := r.shell(t, name, "echo $A"); got != "b\n" {
			t.Errorf("it says %q", got)
		}
		quota, err := r.client.CoreV1().ResourceQuotas(name).Get(limit(t), "sandgate", meta.GetOptions{})
		if err != nil || quota.Spec.Hard.Pods().Value() != 1 {
			t.Errorf("quota: %v, %v", quota, err)
		}
		if ranges, err := r.client.CoreV1().LimitRanges(name).List(limit(t), meta.ListOptions{}); err != nil || len(ranges.Items) != 1 {
			t.Errorf("limit ranges: %v, %v", ranges, err)
		}
		if policies, err := r.client.NetworkingV1().NetworkPolicies(name).List(limit(t), meta.ListOptions{}); err != nil || len(policies.Items) != 1 {
			t.Errorf("policies: %v, %v", policies, err)
		}
		page, err := r.List(limit(t), providers.Query{Tenant: "t", Limit: 10})
		if err != nil || len(page.Sandboxes) != 1 || page.Sandboxes[0].Incarnation != info.Incarnation || page.Sandboxes[0].State != providers.StateActive {
			t.Errorf("list: %+v, %v", page, err)
		}
		if err := r.Delete(limit(t), name, providers.Condition{}); err != nil {
			t.Fatal(err)
		}
		if _, err := r.client.CoreV1().Namespaces().Get(limit(t), name, meta.GetOptions{}); !kerrors.IsNotFound(err) {
			t.Errorf("the namespace is left: %v", err)
		}
		r.nothingLeft(t, name)
	})
	t.Run("S5-11 a quota that is too small fails early and leaves nothing", func(t *testing.T) {
		spec := rawSpec("s5-11", options)
		spec.Resources.MemoryBytes = 3 << 30
		_, _, err := r.Create(limit(t), name, spec)
		if !errors.Is(err, providers.ErrExhausted) {
			t.Errorf("create: %v", err)
		}
		if _, err := r.client.CoreV1().Namespaces().Get(limit(t), name, meta.GetOptions{}); !kerrors.IsNotFound(err) {
			t.Errorf("the namespace is left: %v", err)
		}
		r.nothingLeft(t, name)
	})
	t.Run("a namespace of somebody else's is left alone", func(t *testing.T) {
		foreign := namespace(t, r.client)
		if _, _, err := r.Create(limit(t), foreign, rawSpec("x", options)); err == nil {
			t.Error("it was taken")
		}
		if ns, err := r.client.CoreV1().Namespaces().Get(limit(t), foreign, meta.GetOptions{}); err != nil || ns.DeletionTimestamp != nil {
			t.Errorf("it is %v, %v", ns, err)
		}
	})
}
