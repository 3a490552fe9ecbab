package kubernetes

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sandgate/sandgate/providers"
	shared "github.com/sandgate/sandgate/providers/internal/record"
)

// TestListRequestsPagesOfRelevantPodsOnly: a list asks for pods by the hundred, and for none whose state
// does not matter.
func TestListRequestsPagesOfRelevantPodsOnly(t *testing.T) {
	const all = 150
	p, client := fakeProvider(t)
	for i := range all {
		name := fmt.Sprintf("sg-%03d", i)
		rec := record{
			Sandbox: shared.New(providers.Spec{Tenant: "t", ID: name, IdleTTL: time.Hour}),
			Phase:   phaseActive, Namespace: "ns", Pod: name, UID: types.UID(name),
		}
		if i == 7 {
			rec.LastActivity = time.Now().Add(-2 * time.Hour)
		}
		put(t, client, name, rec)
		if i == 8 {
			continue // its pod is gone
		}
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Labels: map[string]string{labelName: name}}}
		if _, err := client.CoreV1().Pods("ns").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		query     providers.Query
		found     int
		podLists  int
		podSingly int
	}{
		"all":               {providers.Query{}, all, 2, 1},
		"another tenant's":  {providers.Query{Tenant: "u"}, 0, 0, 0},
		"what is due":       {providers.Query{DueBy: time.Now()}, 1, 1, 0},
		"nothing is due":    {providers.Query{DueBy: time.Now().Add(-3 * time.Hour)}, 0, 0, 0},
		"active ones":       {providers.Query{States: []providers.State{providers.StateActive}}, all - 1, 2, 1},
		"one without a pod": {providers.Query{States: []providers.State{providers.StateFailed}}, 1, 2, 1},
	} {
		client.ClearActions()
		c.query.Limit = 1000
		page, err := p.List(t.Context(), c.query)
		if err != nil || len(page.Sandboxes) != c.found {
			t.Errorf("%s: %d sandboxes, %v; want %d", name, len(page.Sandboxes), err, c.found)
		}
		lists, singly := 0, 0
		for _, a := range client.Actions() {
			if a.Matches("list", "pods") {
				lists++
			}
			if a.Matches("get", "pods") {
				singly++
			}
		}
		if lists != c.podLists || singly != c.podSingly {
			t.Errorf("%s: pods were listed %d times and asked for singly %d times, want %d and %d", name, lists, singly, c.podLists, c.podSingly)
		}
	}
}
