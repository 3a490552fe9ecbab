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

// Transport is how the server reaches the agents.
type Transport = kube.Transport

// The transports.
const (
	TransportAuto  = kube.TransportAuto
	TransportExec  = kube.TransportExec
	TransportPodIP = kube.TransportPodIP
)

const (
	// agentPortName is the port's name in the pods. The network policy names it,
	// so that it holds for pods of whatever port they were made with.
	agentPortName = "sandgate-agent"
	// secretVariable carries the agent's secret into it.
	secretVariable = "SANDGATE_AGENT_SECRET"
)

// listens reports whether the agent takes connections to a port of its pod.
func (p *plan) listens() bool { return p.config.Transport.Listens() }

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

// agentPort is where a pod's agent listens, or 0: a server with another
// transport may have made the pod.
func agentPort(pod *corev1.Pod) int32 {
	for _, c := range pod.Spec.Containers {
		for _, port := range c.Ports {
			if c.Name == containerName && port.Name == agentPortName {
				return port.ContainerPort
			}
		}
	}
	return 0
}

// openRecorded connects to the agent of the pod that a record names.
func (p *Provider) openRecorded(ctx context.Context, rec *record) (net.Conn, error) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: rec.Namespace, Name: rec.Pod}}
	if p.config.Transport.Listens() {
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

// open connects to the agent of a pod.
func (p *Provider) open(ctx context.Context, pod *corev1.Pod) (net.Conn, error) {
	return p.agents.Dial(ctx, p.agentIn(pod))
}

// openFirst connects to an agent that was just started. Where exec is tried next,
// only the first try waits until the agent listens.
func (p *Provider) openFirst(ctx context.Context, pod *corev1.Pod, try int) (net.Conn, error) {
	agent := p.agentIn(pod)
	agent.Starting = try == 1 || p.config.Transport != TransportAuto
	return p.agents.Dial(ctx, agent)
}

func (p *Provider) agentIn(pod *corev1.Pod) kube.Agent {
	return kube.Agent{
		Pod: pod, Port: agentPort(pod), Group: pod.Labels[labelNetwork], Container: containerName, Command: connectCommand(),
		Secret: func(ctx context.Context) (sealed.Secret, error) { return p.readSecret(ctx, pod) },
	}
}

// transport is how this server reaches the agent of a pod.
func (p *Provider) transport(pod *corev1.Pod) string {
	return string(p.agents.Transport(agentPort(pod), pod.Labels[labelNetwork]))
}
