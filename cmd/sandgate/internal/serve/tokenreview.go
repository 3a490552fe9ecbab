package serve

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientv1 "k8s.io/client-go/kubernetes/typed/authentication/v1"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/sandgate/sandgate/server/authn"
)

// Bounds of the reviews that the API server is asked for, per second.
const (
	reviewsPerSecond = 50
	reviewBurst      = 100
)

// keySetPath is where an API server publishes the keys that sign its accounts' tokens.
// Every service account may read it, by the role
// system:service-account-issuer-discovery.
const keySetPath = "/openid/v1/jwks"

// accounts returns an authenticator that asks the API server about tokens of service
// accounts.
func (c config) accounts(ctx context.Context, logger *slog.Logger) (*authn.Accounts, error) {
	a := c.Auth.Kubernetes
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = cmp.Or(a.Kubeconfig, c.Kubernetes.Kubeconfig)
	rules.WarnIfAllMissing = false
	rest, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules,
		&clientcmd.ConfigOverrides{CurrentContext: cmp.Or(a.Context, c.Kubernetes.Context)}).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("the cluster's client cannot be configured: %w", err)
	}
	rest.QPS, rest.Burst, rest.UserAgent = reviewsPerSecond, reviewBurst, "sandgate"
	rest.ContentType = runtime.ContentTypeJSON
	client, err := clientv1.NewForConfig(rest)
	if err != nil {
		return nil, err
	}
	cfg := authn.AccountsConfig{Audience: a.Audience, Review: func(ctx context.Context, token, audience string) (authn.Review, error) {
		return reviewToken(ctx, client.TokenReviews(), token, audience)
	}, Keys: func(ctx context.Context) ([]byte, error) {
		return client.RESTClient().Get().AbsPath(keySetPath).DoRaw(ctx)
	}}
	if cfg.Rules, err = a.rules(); err != nil {
		return nil, err
	}
	return authn.OpenAccounts(ctx, cfg, logger)
}

func (a accountsConfig) rules() ([]authn.AccountRule, error) {
	var rules []authn.AccountRule
	for _, account := range a.Accounts {
		rule := authn.AccountRule{Namespace: account.Namespace, Name: account.Name, Tenant: account.Tenant}
		if account.Role != "" {
			var err error
			if rule.Role, err = authn.ParseRole(account.Role); err != nil {
				return nil, err
			}
		}
		rules = append(rules, rule)
	}
	return rules, nil
}

func reviewToken(ctx context.Context, client clientv1.TokenReviewInterface, token, audience string) (authn.Review, error) {
	answer, err := client.Create(ctx, &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: []string{audience}},
	}, metav1.CreateOptions{})
	if err != nil {
		return authn.Review{}, err
	}
	s := answer.Status
	return authn.Review{Authenticated: s.Authenticated, User: s.User.Username, Audiences: s.Audiences}, nil
}
