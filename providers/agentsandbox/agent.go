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

// note is what a pod's annotation says of the agent in it. It goes with the pod
// and is void when the container was started again.
type note struct {
	kube.Injected
	Container  string `json:"container"` // the container's id
	Generation int    `json:"generation,omitempty"`
	Workdir    string `json:"workdir,omitempty"`
	// Stopped is true when the agent was ended on purpose.
	Stopped bool `json:"stopped,omitempty"`
}

// generation is that of the agent that runs, or of the one to be started. In a
// pod it only grows: what was put in while the cluster did not yet say that the
// container is another one may run there.
func (n note) generation(containerID string) int {
	switch {
	case n.Container == "":
		return 0
	case !n.serves(containerID):
		return n.Generation + 1
	default:
		return n.Generation
	}
}

// fits reports whether the note is of the container that runs now.
func (n note) fits(containerID string) bool { return n.Container == containerID && containerID != "" }

// serves reports whether it is of an agent in that container that nobody has
// stopped.
func (n note) serves(containerID string) bool { return n.fits(containerID) && !n.Stopped }

// readNote returns the zero note where there is none that can be read: the
// agent is then put in.
func readNote(pod *corev1.Pod) note {
	var n note
	if json.Unmarshal([]byte(pod.Annotations[annotationAgent]), &n) != nil {
		return note{}
	}
	return n
}

// seat is a container that runs, and what its agent is to be like.
type seat struct {
	pod       *corev1.Pod
	container string // its name
	id        string
	workdir   string
}

func (p *Provider) at(s seat) kube.Container {
	return kube.Container{Namespace: p.namespace, Pod: s.pod.Name, Name: s.container}
}

var errNotRunning = errors.New("its container does not run now")

// seat is where the agent of a sandbox is now, or errNotRunning.
func (p *Provider) seat(ctx context.Context, s subject) (seat, error) {
	pod, err := p.pod(ctx, s)
	if err != nil {
		return seat{}, err
	}
	return s.seatOf(pod)
}

// seatOf is where the agent of a sandbox is, or errNotRunning.
func (s subject) seatOf(pod *corev1.Pod) (seat, error) {
	if pod == nil || pod.DeletionTimestamp != nil {
		return seat{}, errNotRunning
	}
	c := s.container(pod)
	if c == nil && s.containerName(pod) != "" {
		for _, spec := range pod.Spec.Containers {
			if spec.Name == s.containerName(pod) {
				return seat{}, errNotRunning
			}
		}
		return seat{}, fmt.Errorf("its pod has no container %q: %w", s.containerName(pod), providers.ErrInvalid)
	}
	if c == nil || c.ContainerID == "" || c.State.Running == nil {
		return seat{}, errNotRunning
	}
	return seat{pod: pod, container: c.Name, id: c.ContainerID, workdir: s.record.Spec.WorkingDirectory}, nil
}

// agent makes sure that an agent was started in the container, and returns
// where. One that a note tells of is taken at its word.
func (p *Provider) agent(ctx context.Context, s seat) (note, error) {
	n := readNote(s.pod)
	if n.serves(s.id) {
		return n, nil
	}
	return p.inject(ctx, s, n.generation(s.id))
}

// inject puts an agent in and notes it down. Servers that do so at once agree:
// the incarnation follows from the container and the generation, only one agent
// of it can be started, and the note of a later generation wins.
func (p *Provider) inject(ctx context.Context, s seat, generation int) (note, error) {
	n := note{Container: s.id, Generation: generation, Workdir: s.workdir}
	want := kube.Injection{
		Incarnation: incarnation(s.pod.UID, s.id, generation), Generation: generation, Workdir: s.workdir,
		Container: s.container, Where: s.pod.Namespace + "/" + s.pod.Name,
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
	return p.writeNote(ctx, s, n)
}

func (p *Provider) writeNote(ctx context.Context, s seat, n note) (note, error) {
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
		_, err = p.core.Pods(p.namespace).Patch(ctx, pod.Name, types.MergePatchType, data, metav1.PatchOptions{})
		if err == nil {
			return n, nil
		}
		if !apierrors.IsConflict(err) {
			return n, kube.Wrap(ctx, "note the agent on pod "+pod.Name, err)
		}
		now, err := p.core.Pods(p.namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		if err != nil {
			return n, kube.Wrap(ctx, "pod "+pod.Name, err)
		}
		if now.UID != s.pod.UID {
			return n, fmt.Errorf("pod %s was replaced meanwhile: %w", pod.Name, providers.ErrUnavailable)
		}
		if theirs := readNote(now); theirs.fits(n.Container) && theirs.Generation >= n.Generation && !n.Stopped {
			return theirs, nil
		}
		pod = now
	}
}

// connect opens a connection to the agent. An agent that ended is followed by one
// of the next generation, which is another incarnation: what ran below the
// first, and what is known of it, is lost.
func (p *Provider) connect(ctx context.Context, s seat) (net.Conn, note, error) {
	n, err := p.agent(ctx, s)
	if err != nil {
		return nil, n, err
	}
	conn, err := p.open(ctx, s, n)
	if err == nil || ctx.Err() != nil || p.answers(ctx, s, n) {
		return conn, n, err
	}
	p.log.WarnContext(ctx, "the agent is gone; the next one is started", "pod", s.pod.Name, "generation", n.Generation+1, "error", err)
	if n, err = p.inject(ctx, s, n.Generation+1); err != nil {
		return nil, n, err
	}
	conn, err = p.open(ctx, s, n)
	return conn, n, err
}

// connectCommand joins an exec's standard input and output to the agent.
func (s seat) connectCommand(n note) []string {
	return n.Connect(incarnation(s.pod.UID, s.id, n.Generation))
}

// answers reports whether the agent is not surely gone. Without input connect
// succeeds where the agent listens.
func (p *Provider) answers(ctx context.Context, s seat, n note) bool {
	r, err := p.executor.In(p.at(s))(ctx, s.connectCommand(n), bytes.NewReader(nil))
	return !surelyGone(r, err)
}

// surelyGone reports whether a run of connect says that no agent listens. That
// is its own failure, or that there is no such program; one that was killed, as
// by a kernel that is out of memory, has not asked.
func surelyGone(r kube.Result, err error) bool {
	const failed, notRunnable, notFound = 1, 126, 127
	if err != nil {
		return kube.NoExecutable(err)
	}
	return r.Code == failed || r.Code == notRunnable || r.Code == notFound
}
