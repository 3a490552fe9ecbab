package agentsandbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/kube"
)

// agentAnnotation is a pod's annotation about the agent in it. It becomes void when
// the container restarts.
type agentAnnotation struct {
	kube.Injected
	Container  string `json:"container"` // the container's id
	Generation int    `json:"generation,omitempty"`
	Workdir    string `json:"workdir,omitempty"`
	// Stopped is true if the server stopped the agent.
	Stopped bool `json:"stopped,omitempty"`
}

// generation is that of the running agent, or of the next one. It only grows within
// a pod: an agent that was injected before the cluster reported a restart of the
// container may run in the new one.
func (n agentAnnotation) generation(containerID string) int {
	switch {
	case n.Container == "":
		return 0
	case !n.serves(containerID):
		return n.Generation + 1
	default:
		return n.Generation
	}
}

// fits reports whether the annotation is about the running container.
func (n agentAnnotation) fits(containerID string) bool {
	return n.Container == containerID && containerID != ""
}

// serves reports whether it is about an agent in that container that was not
// stopped.
func (n agentAnnotation) serves(containerID string) bool { return n.fits(containerID) && !n.Stopped }

// readAnnotation returns the zero value if there is no readable annotation: the
// agent is then injected.
func readAnnotation(pod *corev1.Pod) agentAnnotation {
	var n agentAnnotation
	if json.Unmarshal([]byte(pod.Annotations[annotationAgent]), &n) != nil {
		return agentAnnotation{}
	}
	return n
}

// agentContainer is a running container for an agent.
type agentContainer struct {
	pod       *corev1.Pod
	container string // its name
	id        string
	workdir   string
	egress    bool // the agent opens its proxy
	redirect  bool // and may redirect connects
}

// suits reports whether the annotation is about an agent that runs in the container
// and was started as the sandbox needs it. One that redirects nothing suits all: its
// kernel may not allow it.
func (s agentContainer) suits(n agentAnnotation) bool {
	return n.serves(s.id) && n.Workdir == s.workdir && n.Egress == s.egress && (s.redirect || !n.Redirect)
}

// on returns a copy of the pod that has the annotation.
func (n agentAnnotation) on(pod *corev1.Pod) *corev1.Pod {
	text, err := json.Marshal(n)
	if err != nil {
		return pod
	}
	pod = pod.DeepCopy()
	if pod.Annotations == nil {
		pod.Annotations = make(map[string]string)
	}
	pod.Annotations[annotationAgent] = string(text)
	return pod
}

func (p *Provider) at(s agentContainer) kube.Container {
	return kube.Container{Namespace: p.Namespace, Pod: s.pod.Name, Name: s.container}
}

var errNotRunning = errors.New("its container does not run now")

// agentContainer returns the container of a sandbox's agent, or errNotRunning.
func (p *Provider) agentContainer(ctx context.Context, s observed) (agentContainer, error) {
	pod, err := p.pod(ctx, s)
	if err != nil {
		return agentContainer{}, err
	}
	return s.agentContainer(pod)
}

// agentContainer is where the agent of a sandbox is, or errNotRunning.
func (s observed) agentContainer(pod *corev1.Pod) (agentContainer, error) {
	if pod == nil || pod.DeletionTimestamp != nil {
		return agentContainer{}, errNotRunning
	}
	c := s.container(pod)
	if c == nil && s.containerName(pod) != "" {
		for _, spec := range pod.Spec.Containers {
			if spec.Name == s.containerName(pod) {
				return agentContainer{}, errNotRunning
			}
		}
		return agentContainer{}, fmt.Errorf("its pod has no container %q: %w", s.containerName(pod), providers.ErrInvalid)
	}
	if c == nil || c.ContainerID == "" || c.State.Running == nil {
		return agentContainer{}, errNotRunning
	}
	spec := s.record.Spec
	return agentContainer{
		pod: pod, container: c.Name, id: c.ContainerID,
		workdir: spec.WorkingDirectory, egress: spec.Network == providers.NetworkProxy,
		redirect: spec.Network == providers.NetworkProxy && !asksAgent(pod) && !operatorOptions(spec).NoRedirect,
	}, nil
}

// agent makes sure that an agent was started in the container as the sandbox needs
// it, and returns its location. It trusts the annotation. An agent that was started
// for a pool's pod may be another.
func (p *Provider) agent(ctx context.Context, s agentContainer) (agentAnnotation, error) {
	n := readAnnotation(s.pod)
	if s.suits(n) {
		return n, nil
	}
	generation := n.generation(s.id)
	if n.serves(s.id) {
		generation++
	}
	n, err := p.inject(ctx, s, generation)
	if err == nil && !s.suits(n) { // the pool's was started meanwhile
		n, err = p.inject(ctx, s, n.Generation+1)
	}
	return n, err
}

// inject installs an agent and annotates the pod. Concurrent servers agree: the
// incarnation follows from container and generation, only one agent of an
// incarnation can start, and the annotation of a later generation wins.
func (p *Provider) inject(ctx context.Context, s agentContainer, generation int) (agentAnnotation, error) {
	n := agentAnnotation{Container: s.id, Generation: generation, Workdir: s.workdir}
	want := kube.Injection{
		Incarnation: incarnation(s.pod.UID, s.id, generation), Generation: generation, Workdir: s.workdir,
		Container: s.container, Where: s.pod.Namespace + "/" + s.pod.Name, Egress: s.egress, Redirect: s.redirect,
	}
	if err := p.listen(ctx, s.pod, &want); err != nil {
		return n, err
	}
	at, err := p.injector.Inject(ctx, p.executor.In(p.at(s)), want)
	if err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("put the agent into pod %s: %w", s.pod.Name, context.Cause(ctx))
		}
		return n, err
	}
	n.Injected = at
	return p.writeAnnotation(ctx, s, n)
}

func (p *Provider) writeAnnotation(ctx context.Context, s agentContainer, n agentAnnotation) (agentAnnotation, error) {
	text, err := json.Marshal(n)
	if err != nil {
		return n, err
	}
	for pod := s.pod; ; {
		data, err := json.Marshal(map[string]any{"metadata": map[string]any{
			"uid": pod.UID, "resourceVersion": pod.ResourceVersion,
			"annotations": map[string]string{annotationAgent: string(text)},
		}})
		if err != nil {
			return n, err
		}
		_, err = p.Core.Pods(p.Namespace).Patch(ctx, pod.Name, types.MergePatchType, data, metav1.PatchOptions{})
		if err == nil {
			return n, nil
		}
		if !apierrors.IsConflict(err) {
			return n, kube.Wrap(ctx, "annotate pod "+pod.Name, err)
		}
		now, err := p.Core.Pods(p.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		if err != nil {
			return n, kube.Wrap(ctx, "pod "+pod.Name, err)
		}
		if now.UID != s.pod.UID {
			return n, fmt.Errorf("pod %s was replaced meanwhile: %w", pod.Name, providers.ErrUnavailable)
		}
		if theirs := readAnnotation(now); theirs.fits(n.Container) && theirs.Generation >= n.Generation && !n.Stopped {
			return theirs, nil
		}
		pod = now
	}
}

// connect opens a connection to the agent. If the agent has ended, connect starts
// one of the next generation, which is another incarnation: the commands of the
// first are lost.
func (p *Provider) connect(ctx context.Context, s agentContainer) (net.Conn, agentAnnotation, error) {
	n, err := p.agent(ctx, s)
	if err != nil {
		return nil, n, err
	}
	conn, err := p.open(ctx, s, n)
	if err == nil || ctx.Err() != nil || p.answers(ctx, s, n) {
		return conn, n, err
	}
	p.Log.WarnContext(ctx, "the agent is gone; the next one is started", "pod", s.pod.Name, "generation", n.Generation+1, "error", err)
	if n, err = p.inject(ctx, s, n.Generation+1); err != nil {
		return nil, n, err
	}
	conn, err = p.open(ctx, s, n)
	return conn, n, err
}

// connectCommand joins an exec's standard input and output to the agent.
func (s agentContainer) connectCommand(n agentAnnotation) []string {
	return n.Connect(incarnation(s.pod.UID, s.id, n.Generation))
}

// answers reports whether the agent may still be there. Without input, connect
// succeeds if the agent listens.
func (p *Provider) answers(ctx context.Context, s agentContainer, n agentAnnotation) bool {
	r, err := p.executor.In(p.at(s))(ctx, s.connectCommand(n), bytes.NewReader(nil))
	return !surelyGone(r, err)
}

// surelyGone reports whether a run of connect shows that no agent listens: connect
// failed, or the program is missing. A connect that was killed, for example by the
// OOM killer, shows nothing.
func surelyGone(r kube.Result, err error) bool {
	const failed, notRunnable, notFound = 1, 126, 127
	if err != nil {
		return kube.NoExecutable(err)
	}
	return r.Code == failed || r.Code == notRunnable || r.Code == notFound
}
