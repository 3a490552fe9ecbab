package kubernetes

import (
	"context"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sandgate/sandgate/providers/internal/kube"
	shared "github.com/sandgate/sandgate/providers/internal/record"
	"github.com/sandgate/sandgate/streaming/sealed"
)

// newSecretName names the secret of a pod: the values of its environment, and
// its agent's own. A kubelet may still hold what was in the secret of a pod that
// had the same name before, so that no name is used twice.
func newSecretName(pod string) string { return secretPrefix(pod) + "-" + shared.Random() }

func secretPrefix(pod string) string { return pod + "-env" }

// secretOf is the secret that was made for a pod, or empty.
func secretOf(pod *corev1.Pod) string {
	for _, c := range pod.Spec.Containers {
		for _, e := range c.Env {
			if c.Name == containerName && e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil &&
				strings.HasPrefix(e.ValueFrom.SecretKeyRef.Name, secretPrefix(pod.Name)) {
				return e.ValueFrom.SecretKeyRef.Name
			}
		}
	}
	return ""
}

// secretData is what the pod's secret holds.
func (p *plan) secretData() map[string]string {
	data := map[string]string{}
	for i, k := range envKeys(p.spec.Env) {
		data[envValueKey(i)] = p.spec.Env[k]
	}
	if p.listens() {
		data[kube.SecretKey] = p.agentSecret.Text()
	}
	return data
}

// readSecret reads the secret of a pod's agent. It is in the namespace of the
// records also where the pod has a namespace of its own, so that the server need
// not read secrets elsewhere.
func (p *Provider) readSecret(ctx context.Context, pod *corev1.Pod) (sealed.Secret, error) {
	return kube.ReadSecret(ctx, p.Core.Secrets(p.Namespace), secretOf(pod), pod)
}

// copySecret puts the agent's secret where the server may read it, for a pod in
// a namespace of its own.
func (p *Provider) copySecret(ctx context.Context, pl *plan, cm *corev1.ConfigMap, rec *record) error {
	if !pl.listens() || !rec.OwnNamespace {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
	defer cancel()
	_, err := p.Core.Secrets(p.Namespace).Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: pl.secret, OwnerReferences: owner(cm), Labels: map[string]string{managedBy: managedByValue}},
		StringData: map[string]string{kube.SecretKey: pl.agentSecret.Text()}, Immutable: new(true),
	}, metav1.CreateOptions{})
	return kube.WrapCreate(ctx, "make the secret of the sandbox's agent", err)
}

// deleteSecret deletes the secret of a pod, if it has one.
func (p *Provider) deleteSecret(ctx context.Context, pod *corev1.Pod) error {
	name := secretOf(pod)
	if name == "" {
		return nil
	}
	err := p.Core.Secrets(pod.Namespace).Delete(ctx, name, metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return kube.Wrap(ctx, "delete the secret of the sandbox's pod", err)
}
