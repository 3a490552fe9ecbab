package kubernetes

import (
	"context"
	"fmt"
	"net"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sandgate/sandgate/providers"
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

const (
	// agentPortName is the port's name in the pods. The network policy names it,
	// so that it holds for pods of whatever port they were made with.
	agentPortName = "sandgate-agent"
	// secretVariable carries the agent's secret into it.
	secretVariable = "SANDGATE_AGENT_SECRET"
)

// listens reports whether the agent takes connections to a port of its pod.
func (p *plan) listens() bool { return p.config.Way != WayExec }

// port is where it does, or 0.
func (p *plan) port() int32 {
	if !p.listens() {
		return 0
	}
	return p.config.AgentPort
}

// listenPort is the container's port of an agent that listens.
func (p *plan) listenPort() []corev1.ContainerPort {
	if !p.listens() {
		return nil
	}
	return []corev1.ContainerPort{{Name: agentPortName, ContainerPort: p.config.AgentPort, Protocol: corev1.ProtocolTCP}}
}

// secretEnv gives the agent its secret.
func (p *plan) secretEnv() []corev1.EnvVar {
	if !p.listens() {
		return nil
	}
	return []corev1.EnvVar{{Name: secretVariable, ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
		LocalObjectReference: corev1.LocalObjectReference{Name: p.secret}, Key: kube.SecretKey,
	}}}}
}

// checkListening keeps overrides away from what the server's way in needs.
func (p *plan) checkListening(c *corev1.Container) error {
	for _, want := range p.listenPort() {
		if !slices.Contains(c.Ports, want) {
			return fmt.Errorf("container %s: ports: %s must stay as it is", c.Name, want.Name)
		}
	}
	var found []corev1.EnvVar
	for _, e := range c.Env {
		if e.Name == secretVariable {
			found = append(found, e)
		}
	}
	if !equality.Semantic.DeepEqual(found, p.secretEnv()) {
		return fmt.Errorf("container %s: env: %s is the agent's own", c.Name, secretVariable)
	}
	return nil
}

// agentPort is where a pod's agent takes connections by a way, or 0: it may have
// been made when this server, or another, took another way.
func agentPort(pod *corev1.Pod, by Way) int32 {
	for _, c := range pod.Spec.Containers {
		for _, port := range c.Ports {
			if c.Name == containerName && by != WayExec && port.Name == agentPortName {
				return port.ContainerPort
			}
		}
	}
	return 0
}

// openRecorded connects to the agent of the pod that a record names.
func (p *Provider) openRecorded(ctx context.Context, rec *record) (net.Conn, error) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: rec.Namespace, Name: rec.Pod}}
	if p.config.Way != WayExec {
		var err error
		if pod, err = p.pods(rec.Namespace).Get(ctx, rec.Pod, getOptions); err != nil {
			return nil, kube.Wrap(ctx, "pod "+rec.Pod, err)
		}
		if pod.UID != rec.UID {
			return nil, fmt.Errorf("pod %s is another one than the sandbox's: %w", pod.Name, providers.ErrUnavailable)
		}
	}
	return p.open(ctx, pod)
}

// open connects to the agent of a pod: by exec where its way does not lead to
// the pod.
func (p *Provider) open(ctx context.Context, pod *corev1.Pod) (net.Conn, error) {
	return p.openBy(ctx, pod, p.conns.Dial)
}

// openFirst is open for an agent that was just started.
func (p *Provider) openFirst(ctx context.Context, pod *corev1.Pod) (net.Conn, error) {
	return p.openBy(ctx, pod, p.conns.DialNew)
}

func (p *Provider) openBy(ctx context.Context, pod *corev1.Pod, dial func(context.Context, *corev1.Pod, int32, sealed.Secret) (net.Conn, error)) (net.Conn, error) {
	port := agentPort(pod, p.config.Way)
	if port == 0 {
		return p.exec.Tunnel(ctx, kube.Container{Namespace: pod.Namespace, Pod: pod.Name, Name: containerName}, connectCommand())
	}
	secret, err := p.readSecret(ctx, pod)
	if err != nil {
		return nil, err
	}
	return dial(ctx, pod, port, secret)
}
