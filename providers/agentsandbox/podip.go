package agentsandbox

import (
	"context"
	"net"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sandgate/sandgate/providers/internal/kube"
	"github.com/sandgate/sandgate/streaming/sealed"
)

// Way is how the server reaches the agents.
type Way string

// The ways.
const (
	WayExec  Way = kube.WayExec
	WayPodIP Way = kube.WayPodIP
)

// secretName is the secret of all agents of one pod. It is the pod's and goes
// with it: a pod that is made anew under the same name has another.
func secretName(pod types.UID) string { return "sandgate-agent-" + digest(string(pod)) }

// byPort reports whether an agent is reached by a port of its pod. One that was
// put in when this server, or another, took another way may not be.
func (p *Provider) byPort(n note) bool { return n.Port != 0 && p.config.Way == WayPodIP }

// listen makes an agent that is to be put in take connections to a port of its
// pod.
func (p *Provider) listen(ctx context.Context, pod *corev1.Pod, want *kube.Injection) error {
	if p.config.Way == WayExec {
		return nil
	}
	var err error
	want.Port = p.config.AgentPort
	want.Secret, err = p.makeSecret(ctx, pod)
	return err
}

// makeSecret makes the pod's secret, or reads the one that it has: servers that
// put an agent in at once must tell it the same.
func (p *Provider) makeSecret(ctx context.Context, pod *corev1.Pod) (sealed.Secret, error) {
	secret := sealed.NewSecret()
	_, err := p.core.Secrets(p.namespace).Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Name: secretName(pod.UID), Labels: map[string]string{managedBy: managedByValue},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}},
		},
		StringData: map[string]string{kube.SecretKey: secret.Text()}, Immutable: new(true),
	}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return p.readSecret(ctx, pod)
	}
	return secret, kube.Wrap(ctx, "make the secret of the agent in pod "+pod.Name, err)
}

func (p *Provider) readSecret(ctx context.Context, pod *corev1.Pod) (sealed.Secret, error) {
	return kube.ReadSecret(ctx, p.core.Secrets(p.namespace), secretName(pod.UID), pod)
}

// dialPort connects to an agent at a port of its pod.
func (p *Provider) dialPort(ctx context.Context, pod *corev1.Pod, n note) (net.Conn, error) {
	secret, err := p.readSecret(ctx, pod)
	if err != nil {
		return nil, err
	}
	return p.conns.Dial(ctx, pod, n.Port, secret)
}
