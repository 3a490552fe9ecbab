package kubernetes

import (
	"context"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// defaultAccount is the service account of pods that name none.
const defaultAccount = "default"

// whoAmI returns the name of the server's own service account, or "" if the
// server is no service account of the namespace of the sandboxes.
func (p *Provider) whoAmI(ctx context.Context) string {
	review, err := p.client.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		p.Log.WarnContext(ctx, "the server cannot learn its own service account, so templates can name it", "error", err)
		return ""
	}
	name, found := strings.CutPrefix(review.Status.UserInfo.Username, "system:serviceaccount:"+p.Namespace+":")
	if !found {
		return ""
	}
	return name
}
