package kube

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/rest"

	"github.com/sandgate/sandgate/providers"
)

// Transport is how bytes reach an agent.
type Transport string

// The transports.
const (
	// TransportAuto is TransportPodIP for a server that runs in the cluster, with
	// TransportExec for pods whose address it cannot reach. Elsewhere it is
	// TransportExec.
	TransportAuto Transport = "auto"
	// TransportExec joins the agent through the API server, by an exec stream.
	TransportExec Transport = "exec"
	// TransportPodIP connects to the agent's port at the pod's address.
	TransportPodIP Transport = "pod-ip"
)

// DefaultAgentPort is where agents listen.
const DefaultAgentPort = 7778

// CheckTransport returns the transport and the port to use. The error wraps
// ErrInvalid.
func CheckTransport(t Transport, port int32) (Transport, int32, error) {
	switch t {
	case "":
		t = TransportAuto
	case TransportAuto, TransportExec, TransportPodIP:
	default:
		return "", 0, fmt.Errorf("transport %q is none of %s, %s and %s: %w", t, TransportAuto, TransportPodIP, TransportExec, providers.ErrInvalid)
	}
	if port == 0 {
		port = DefaultAgentPort
	}
	if errs := validation.IsValidPortNum(int(port)); len(errs) > 0 {
		return "", 0, fmt.Errorf("agent port %d: %s: %w", port, strings.Join(errs, "; "), providers.ErrInvalid)
	}
	if port < 1024 {
		return "", 0, fmt.Errorf("agent port %d: agents run without the privilege to listen below 1024: %w", port, providers.ErrInvalid)
	}
	return t, port, nil
}

// Listens reports whether new agents listen at a port of their pods.
func (t Transport) Listens() bool { return t == TransportPodIP || t == TransportAuto }

// Resolve decides what TransportAuto is for this server and logs the transport.
// It stays TransportAuto only if the cluster around the server is the one that
// config leads to, and the server's account has these rights on the secrets of
// the namespace. Resolve returns an error if the cluster does not answer that.
func (t Transport) Resolve(
	ctx context.Context, config *rest.Config, reviews authorizationclient.SelfSubjectAccessReviewsGetter, namespace string, verbs []string, log *slog.Logger,
) (Transport, error) {
	if t != TransportAuto {
		log.InfoContext(ctx, "transport to agents", "transport", string(t))
		return t, nil
	}
	own, err := rest.InClusterConfig()
	if err != nil || own.Host != config.Host {
		log.InfoContext(ctx, "transport to agents", "transport", string(TransportExec), "reason", "the server does not run in the cluster of its sandboxes")
		return TransportExec, nil
	}
	missing, err := missingRight(ctx, reviews, namespace, verbs)
	if err != nil {
		return "", err
	}
	if missing != "" {
		log.WarnContext(ctx, "transport to agents", "transport", string(TransportExec),
			"reason", fmt.Sprintf("%s needs the right to %s secrets in namespace %s", TransportPodIP, missing, namespace))
		return TransportExec, nil
	}
	log.InfoContext(ctx, "transport to agents", "transport", string(TransportPodIP), "else", string(TransportExec))
	return t, nil
}

const (
	reviewTries = 4
	reviewPause = time.Second
)

// missingRight returns the first of the rights on secrets that the server's account
// does not have, or may not ask for. It repeats a request that fails otherwise: the
// answer holds as long as the server runs.
func missingRight(ctx context.Context, reviews authorizationclient.SelfSubjectAccessReviewsGetter, namespace string, verbs []string) (string, error) {
	for _, verb := range verbs {
		for try := 1; ; try++ {
			review, err := reviews.SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
				Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
					Namespace: namespace, Verb: verb, Resource: "secrets",
				}},
			}, metav1.CreateOptions{})
			if err == nil && review.Status.Allowed {
				break
			}
			if err == nil || apierrors.IsForbidden(err) {
				return verb, nil
			}
			if try == reviewTries || ctx.Err() != nil {
				return "", Wrap(ctx, "check the server's rights on secrets in namespace "+namespace, err)
			}
			select {
			case <-ctx.Done():
			case <-time.After(reviewPause):
			}
		}
	}
	return "", nil
}
