package agentsandbox

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/kube"
)

// observed is a sandbox as the cluster's objects show it, without its pod.
type observed struct {
	name    string
	record  record
	broken  error // why the record cannot be read
	uid     types.UID
	version string
	// deleting is true if the object that represents it is being deleted.
	deleting        bool
	ready, finished *metav1.Condition
	sandbox         string // the Sandbox's name, which is its pod's; may be empty
	fromPool        bool
	seen            string // an incarnation that it had
}

func ofClaim(c *claim) observed {
	s := observed{
		name: c.Name, uid: c.UID, version: c.ResourceVersion, deleting: c.DeletionTimestamp != nil,
		ready: condition(c.Status.Conditions, conditionReady), finished: condition(c.Status.Conditions, conditionFinished),
		sandbox: c.Status.Sandbox.Name, seen: c.Annotations[annotationSeen],
	}
	// What was started before is named after its pool, what is made for a claim
	// after the claim.
	s.fromPool = s.sandbox != "" && s.sandbox != c.Name
	s.record, s.broken = decodeRecord(c.Annotations[annotationRecord])
	return s
}

func ours(labels map[string]string, kind string) bool {
	return labels[managedBy] == managedByValue && labels[labelKind] == kind
}

// find looks a sandbox up by its name.
func (p *Provider) find(ctx context.Context, name string) (observed, error) {
	c, err := p.claims.get(ctx, name)
	switch {
	case err == nil && ours(c.Labels, kindSandbox):
		return ofClaim(c), nil
	case err == nil:
		return observed{}, fmt.Errorf("a SandboxClaim %s is there, and it is not Sandgate's: %w", name, providers.ErrNotFound)
	case !apierrors.IsNotFound(err):
		return observed{}, kube.Wrap(ctx, "sandbox "+name, err)
	}
	return p.findAdopted(ctx, name)
}

// pod returns the sandbox's pod, and nil where it has none now.
func (p *Provider) pod(ctx context.Context, s observed) (*corev1.Pod, error) {
	if s.sandbox == "" {
		return nil, nil
	}
	pod, err := p.Core.Pods(p.Namespace).Get(ctx, s.sandbox, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, kube.Wrap(ctx, "pod "+s.sandbox, err)
	}
	return s.own(pod), nil
}

// own returns the pod if the Sandbox owns it, and nil if it only has the name.
func (s observed) own(pod *corev1.Pod) *corev1.Pod {
	if owner := metav1.GetControllerOf(pod); owner == nil || owner.Kind != "Sandbox" || owner.Name != s.sandbox {
		return nil
	}
	return pod
}

// look is find and pod.
func (p *Provider) look(ctx context.Context, name string) (observed, *corev1.Pod, error) {
	s, err := p.find(ctx, name)
	if err != nil {
		return s, nil, err
	}
	pod, err := p.pod(ctx, s)
	return s, pod, err
}

// info derives the sandbox's Info from the objects.
func (s observed) info(pod *corev1.Pod) providers.Info {
	out := providers.Info{
		Name: s.name, Spec: s.record.Spec, Incarnation: s.seen, FromPool: s.fromPool,
		CreateTime: s.record.CreateTime, LastActivity: s.record.LastActivity,
		Runtime: "agent-sandbox",
	}
	if s.broken != nil {
		out.State, out.Message = providers.StateFailed, s.broken.Error()
		return out
	}
	if pod != nil {
		out.Incarnation = s.incarnation(pod)
		s.isolation(&out, pod)
		out.ImageDigest = kube.ImageDigest(pod, s.containerName(pod))
	}
	out.State, out.Message, out.Failure = s.state(pod)
	return out
}

// state is what can be done with the sandbox, and why.
func (s observed) state(pod *corev1.Pod) (providers.State, string, providers.Failure) {
	switch {
	case s.deleting:
		return providers.StateDeleting, "", providers.FailureUnknown
	case s.ready != nil && s.ready.Reason == reasonSuspended:
		return providers.StateSuspended, "", providers.FailureUnknown
	}
	if pod != nil {
		// One that is being deleted is followed by another, however it ended.
		if pod.DeletionTimestamp != nil {
			return providers.StateCreating, "its pod is being replaced", providers.FailureUnknown
		}
		if end := kube.Ended(pod, ""); end != nil {
			return providers.StateFailed, end.Message, end.Failure
		}
	}
	switch {
	case s.terminal(pod) != nil:
		return providers.StateFailed, s.ready.Message, providers.FailureUnknown
	case s.reportsPodEnd():
		return providers.StateCreating, "its pod is being replaced", providers.FailureUnknown
	case !holds(s.ready):
		return providers.StateCreating, s.waiting(pod), providers.FailureUnknown
	case pod == nil:
		return providers.StateCreating, "its pod is being replaced", providers.FailureUnknown
	}
	if c := s.container(pod); c == nil || c.ContainerID == "" || c.State.Running == nil {
		return providers.StateCreating, s.waiting(pod), providers.FailureUnknown
	}
	return providers.StateActive, "", providers.FailureUnknown
}

// waiting describes what the sandbox waits for.
func (s observed) waiting(pod *corev1.Pod) string {
	if pod != nil {
		if c := s.container(pod); c != nil && c.State.Waiting != nil {
			text := c.State.Waiting.Reason
			if last := c.LastTerminationState.Terminated; last != nil && last.Reason != "" {
				text += ", after " + last.Reason
			}
			return text
		}
	}
	if s.ready != nil {
		return s.ready.Message
	}
	return ""
}

// reportsPodEnd reports whether the conditions are about the end of a pod. It may be
// a former pod that the controller replaces.
func (s observed) reportsPodEnd() bool {
	return holds(s.finished) || s.ready != nil && (s.ready.Reason == reasonPodFailed || s.ready.Reason == reasonPodSucceeded)
}

// podEnded reports whether a pod ended by itself. The controller does not replace
// such a pod.
func podEnded(pod *corev1.Pod) bool {
	return pod != nil && pod.DeletionTimestamp == nil && kube.Ended(pod, "") != nil
}

// terminal returns the reason for which the controller will not go on, or nil.
func (s observed) terminal(pod *corev1.Pod) error {
	if s.ready == nil || holds(s.ready) {
		return nil
	}
	message := kube.Shorten(s.ready.Message)
	switch s.ready.Reason {
	case reasonEnv, reasonVolumes, reasonMetadata:
		return fmt.Errorf("the SandboxTemplate does not allow it: %s: %s: %w", s.ready.Reason, message, providers.ErrForbidden)
	case reasonClaimExpired, reasonExpired:
		return providers.NotActive(providers.Info{State: providers.StateFailed}, "it expired: %s", message)
	case reasonSeveralPods:
		return fmt.Errorf("%s: %s: %w", s.ready.Reason, message, providers.ErrStartFailed)
	}
	if s.reportsPodEnd() && podEnded(pod) {
		return fmt.Errorf("its pod has ended: %s: %w", kube.Ended(pod, "").Message, providers.ErrStartFailed)
	}
	return nil
}

// container is the status of the container that the agent is in.
func (s observed) container(pod *corev1.Pod) *corev1.ContainerStatus {
	name := s.containerName(pod)
	for i := range pod.Status.ContainerStatuses {
		if pod.Status.ContainerStatuses[i].Name == name {
			return &pod.Status.ContainerStatuses[i]
		}
	}
	return nil
}

func (s observed) containerName(pod *corev1.Pod) string {
	// The options were good when they were stored.
	o, _ := decodeOptions(s.record.Spec)
	return containerName(pod, o)
}

func containerName(pod *corev1.Pod, o options) string {
	if o.Container != "" || len(pod.Spec.Containers) == 0 {
		return o.Container
	}
	return pod.Spec.Containers[0].Name
}

// incarnation is that of the agent which runs in the pod, or would be started
// in it.
func (s observed) incarnation(pod *corev1.Pod) string {
	c := s.container(pod)
	if c == nil || c.ContainerID == "" {
		return s.seen
	}
	return incarnation(pod.UID, c.ContainerID, readAnnotation(pod).generation(c.ContainerID))
}

var errGone = errors.New("it was deleted meanwhile")
