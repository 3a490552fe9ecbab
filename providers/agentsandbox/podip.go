package agentsandbox

import (
	"context"
	"errors"
	"net"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/kube"
	shared "github.com/sandgate/sandgate/providers/internal/record"
	"github.com/sandgate/sandgate/streaming/sealed"
)

// Transport is how the server reaches the agents.
type Transport = kube.Transport

// The transports.
const (
	TransportAuto  = kube.TransportAuto
	TransportExec  = kube.TransportExec
	TransportPodIP = kube.TransportPodIP
)

// secretName is the secret of all agents of one pod. It is the pod's and goes
// with it: a pod that is made anew under the same name has another.
func secretName(pod types.UID) string { return "sandgate-agent-" + shared.Digest(string(pod)) }

// listen makes an agent that is to be put in take connections to a port of its
// pod. With TransportAuto an agent whose Secret may not be made is reached by exec.
func (p *Provider) listen(ctx context.Context, pod *corev1.Pod, want *kube.Injection) error {
	if !p.config.Transport.Listens() {
		return nil
	}
	secret, err := p.makeSecret(ctx, pod)
	if p.config.Transport == TransportAuto && (errors.Is(err, providers.ErrForbidden) || errors.Is(err, providers.ErrExhausted)) {
		p.Log.WarnContext(ctx, "an agent gets no port and is reached by exec", "pod", pod.Name, "error", err)
		return nil
	}
	want.Port, want.Secret = p.config.AgentPort, secret
	return err
}

// makeSecret makes the pod's secret, or reads the one that it has: servers that
// put an agent in at once must tell it the same.
func (p *Provider) makeSecret(ctx context.Context, pod *corev1.Pod) (sealed.Secret, error) {
	secret := sealed.NewSecret()
	_, err := p.Core.Secrets(p.Namespace).Create(ctx, &corev1.Secret{
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
	return kube.ReadSecret(ctx, p.Core.Secrets(p.Namespace), secretName(pod.UID), pod)
}

// open connects to an agent that was started in a container.
func (p *Provider) open(ctx context.Context, s agentContainer, n agentAnnotation) (net.Conn, error) {
	return p.agents.Dial(ctx, kube.Agent{
		Pod: s.pod, Port: n.Port, Group: s.pod.Labels[templateHashLabel], Container: s.container, Command: s.connectCommand(n),
		Secret: func(ctx context.Context) (sealed.Secret, error) { return p.readSecret(ctx, s.pod) },
	})
}

// info is what the objects of a sandbox say, with the transport of this server.
func (p *Provider) info(ctx context.Context, s observed, pod *corev1.Pod) providers.Info {
	out := s.info(pod)
	if pod != nil && out.Spec.Network == providers.NetworkProxy {
		out.NotEnforced = append(out.NotEnforced, p.unenforced(ctx, out.Spec, pod)...)
	}
	if out.State == providers.StateActive {
		out.Transport = string(p.agents.Transport(readAnnotation(pod).Port, pod.Labels[templateHashLabel]))
	}
	return out
}
