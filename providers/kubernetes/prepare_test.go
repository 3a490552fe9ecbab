package kubernetes

import (
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/kube"
)

// TestFullNetworkPolicyIsCopied: the operator's policy holds also in a namespace
// that is a sandbox's own.
func TestFullNetworkPolicyIsCopied(t *testing.T) {
	client := fake.NewClientset()
	p := &Provider{client: client, Servers: kube.Servers{Core: client.CoreV1(), Namespace: "records"}}
	pl := &plan{spec: providers.Spec{Network: providers.NetworkFull}}
	policies := client.NetworkingV1().NetworkPolicies("own")
	if err := p.prepareNetwork(t.Context(), pl, "own"); err != nil {
		t.Fatal(err)
	}
	if _, err := policies.Get(t.Context(), networkFull, getOptions); !apierrors.IsNotFound(err) {
		t.Errorf("without a policy of the operator's there is one: %v", err)
	}
	operators := &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: networkFull},
		Spec:       networkingv1.NetworkPolicySpec{PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeEgress}},
	}
	if _, err := client.NetworkingV1().NetworkPolicies("records").Create(t.Context(), operators, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := p.prepareNetwork(t.Context(), pl, "own"); err != nil {
		t.Fatal(err)
	}
	have, err := policies.Get(t.Context(), networkFull, getOptions)
	if err != nil || len(have.Spec.PolicyTypes) != 1 {
		t.Errorf("%+v, %v", have, err)
	}
}
