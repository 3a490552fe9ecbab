package kubernetes

import (
	"testing"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	sandgate "github.com/sandgate/sandgate/clients/go"
	"github.com/sandgate/sandgate/server"
	"github.com/sandgate/sandgate/server/policy"
)

// The pod of a template that states nothing has every limit that a pod can have.
func TestTemplateThatStatesNothing(t *testing.T) {
	t.Parallel()
	r := newRawHarness(t)
	client := serve(t, server.Config{Provider: r.Provider, Templates: []policy.Template{{Name: "default"}}})
	box, _, err := client.Create(limit(t), sandgate.CreateRequest{ID: "bare"})
	if err != nil {
		t.Fatal(err)
	}
	list, err := r.client.CoreV1().Pods(r.config.Namespace).List(limit(t), meta.ListOptions{})
	if err != nil || len(list.Items) != 1 {
		t.Fatalf("%d pods, %v", len(list.Items), err)
	}
	limits := list.Items[0].Spec.Containers[0].Resources.Limits
	for _, name := range []core.ResourceName{core.ResourceMemory, core.ResourceCPU, core.ResourceEphemeralStorage} {
		if q, ok := limits[name]; !ok || q.IsZero() {
			t.Errorf("no limit of %s: %v", name, limits)
		}
	}
	if err := box.Delete(limit(t)); err != nil {
		t.Error(err)
	}
}
