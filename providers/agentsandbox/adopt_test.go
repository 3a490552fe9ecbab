package agentsandbox

import (
	"errors"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sandgate/sandgate/providers"
	shared "github.com/sandgate/sandgate/providers/internal/record"
)

// TestFormerTenantsFilesAreKept: what a tenant has wrapped and left behind is for
// no other tenant.
func TestFormerTenantsFilesAreKept(t *testing.T) {
	c := newCluster(t)
	to := target{Kind: sandboxKind, Name: "shared"}
	if _, err := c.p.sandboxes.create(t.Context(), &sandbox{ObjectMeta: metav1.ObjectMeta{Name: to.Name, Namespace: testNamespace, UID: "shared"}}); err != nil {
		t.Fatal(err)
	}
	find := func() existing {
		now, err := c.p.existing(t.Context(), to)
		if err != nil {
			t.Fatal(err)
		}
		return now
	}
	if err := adoptable(to, find(), "first", "a"); err != nil {
		t.Fatal("nobody had it: ", err)
	}
	marks := map[string]any{annotationAdopted: "first", annotationFormer: shared.Digest("a")}
	if err := c.p.mark(t.Context(), to, find(), marks); err != nil {
		t.Fatal(err)
	}
	to.UID = "shared"
	if err := c.p.forget(t.Context(), observed{record: record{Target: &to}}); err != nil {
		t.Fatal(err)
	}
	if err := adoptable(to, find(), "second", "a"); err != nil {
		t.Error("the same tenant: ", err)
	}
	if err := adoptable(to, find(), "second", "b"); !errors.Is(err, providers.ErrForbidden) {
		t.Error("another tenant: ", err)
	}
}
