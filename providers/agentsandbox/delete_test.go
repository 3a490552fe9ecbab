package agentsandbox

import (
	"errors"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	k8stesting "k8s.io/client-go/testing"

	"github.com/sandgate/sandgate/providers"
)

// A sandbox that is used just before its deletion stays, also when the use comes
// between the two looks at the claim.
func TestDeleteSparesWhatIsInUse(t *testing.T) {
	for name, look := range map[string]int{"before the first look": 1, "before the second look": 2} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			c.sandbox("x", "", isReady)
			claim, err := c.p.claims.get(t.Context(), "x")
			if err != nil {
				t.Fatal(err)
			}
			since := ofClaim(claim).record.LastActivity
			looks := 0
			c.dyn.PrependReactor("get", claimsResource.Resource, func(k8stesting.Action) (bool, runtime.Object, error) {
				if looks++; looks == look {
					s := ofClaim(claim)
					s.record.LastActivity = since.Add(time.Second)
					text, err := s.record.encode()
					if err != nil {
						t.Error(err)
					}
					object, err := c.dyn.Tracker().Get(claimsResource, testNamespace, "x")
					if err != nil {
						t.Error(err)
						return false, nil, nil
					}
					now := object.(*unstructured.Unstructured).DeepCopy()
					now.SetAnnotations(map[string]string{annotationRecord: text})
					if err := c.dyn.Tracker().Update(claimsResource, now, testNamespace); err != nil {
						t.Error(err)
					}
				}
				return false, nil, nil
			})
			err = c.p.Delete(soon(t), "x", providers.Condition{IdleSince: since})
			if !errors.Is(err, providers.ErrInUse) || looks != look {
				t.Errorf("%v, after %d looks", err, looks)
			}
			if _, err := c.dyn.Tracker().Get(claimsResource, testNamespace, "x"); err != nil {
				t.Errorf("the claim is gone: %v", err)
			}
		})
	}
}
