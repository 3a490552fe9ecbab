package kubernetes

import (
	"strings"
	"testing"
	"time"

	authorization "k8s.io/api/authorization/v1"
	rbac "k8s.io/api/rbac/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// may asks the API server what the account of a client may do.
func may(t testing.TB, client kubernetes.Interface, namespace, verb, group, resource string) bool {
	t.Helper()
	resource, subresource, _ := strings.Cut(resource, "/")
	review, err := client.AuthorizationV1().SelfSubjectAccessReviews().Create(limit(t), &authorization.SelfSubjectAccessReview{
		Spec: authorization.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorization.ResourceAttributes{
			Namespace: namespace, Verb: verb, Group: group, Resource: resource, Subresource: subresource,
		}},
	}, meta.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return review.Status.Allowed
}

// granted waits until the API server knows of rules that were just bound to the
// account of a kubeconfig.
func granted(t testing.TB, kubeconfig, namespace string, rules []rbac.PolicyRule) {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	last := rules[len(rules)-1]
	for ctx := limit(t); !may(t, client, namespace, last.Verbs[0], last.APIGroups[0], last.Resources[0]); {
		select {
		case <-ctx.Done():
			t.Fatalf("%s never became allowed", last.Resources[0])
		case <-time.After(20 * time.Millisecond):
		}
	}
}
