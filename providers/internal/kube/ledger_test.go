package kube

import (
	"errors"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"

	"github.com/sandgate/sandgate/providers"
)

// A change that another server was faster than is made again, with its document.
func TestConflictingLedgerChangeIsMadeAgain(t *testing.T) {
	client := fake.NewClientset()
	maps := client.CoreV1().ConfigMaps("n")
	of := schema.GroupResource{Resource: "configmaps"}
	fail := map[string][]error{
		"create": {apierrors.NewAlreadyExists(of, "x")},
		"update": {apierrors.NewConflict(of, "x", nil), apierrors.NewNotFound(of, "x")},
	}
	client.PrependReactor("*", "configmaps", func(a ktesting.Action) (bool, runtime.Object, error) {
		if errs := fail[a.GetVerb()]; len(errs) > 0 {
			fail[a.GetVerb()] = errs[1:]
			return true, nil, errs[0]
		}
		return false, nil, nil
	})
	var seen []string
	add := func(old []byte) ([]byte, error) {
		seen = append(seen, string(old))
		return append(old, 'x'), nil
	}
	for range 2 {
		if err := changeLedger(t.Context(), maps, "a", add); err != nil {
			t.Fatal(err)
		}
	}
	// Two calls for the creation, three for the update.
	if want := []string{"", "", "x", "x", "x"}; len(seen) != len(want) || seen[4] != "x" {
		t.Errorf("the documents were %q", seen)
	}
	why := errors.New("refused")
	for _, f := range []func([]byte) ([]byte, error){
		func([]byte) ([]byte, error) { return []byte("lost"), why },
		func([]byte) ([]byte, error) { return nil, nil },
	} {
		if err := changeLedger(t.Context(), maps, "a", f); err != nil && !errors.Is(err, why) {
			t.Error(err)
		}
	}
	if err := changeLedger(t.Context(), maps, "a", add); err != nil || seen[5] != "xx" {
		t.Errorf("%q %v", seen, err)
	}
	fail["update"] = []error{apierrors.NewForbidden(of, "x", why)}
	if err := changeLedger(t.Context(), maps, "a", add); !errors.Is(err, providers.ErrForbidden) {
		t.Errorf("without the right: %v", err)
	}
}
