package kube

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/streaming/sealed"
)

// SecretKey is the key of the agent's secret in a pod's Secret.
const SecretKey = "agent"

// ReadSecret reads the secret of a pod's agent from the Secret of that name. The
// error wraps ErrUnavailable if the Secret is missing or malformed.
func ReadSecret(ctx context.Context, secrets corev1client.SecretInterface, name string, pod *corev1.Pod) (sealed.Secret, error) {
	object, err := secrets.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return sealed.Secret{}, fmt.Errorf("the secret of the agent in pod %s was deleted; by exec it can still be reached: %w", pod.Name, providers.ErrUnavailable)
	}
	if err != nil {
		return sealed.Secret{}, Wrap(ctx, "read the secret of the agent in pod "+pod.Name, err)
	}
	secret, err := sealed.ParseSecret(string(object.Data[SecretKey]))
	if err != nil {
		return sealed.Secret{}, fmt.Errorf("the secret of the agent in pod %s: %w: %w", pod.Name, err, providers.ErrUnavailable)
	}
	return secret, nil
}
