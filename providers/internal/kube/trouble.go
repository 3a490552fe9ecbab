package kube

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/sandgate/sandgate/providers"
)

// Patience is how long a state that may pass is borne.
type Patience struct {
	// Unschedulable: until a node is free or has been added. 0: 15 s.
	Unschedulable time.Duration
}

const (
	defaultUnschedulable = 15 * time.Second
	// configPatience is for what a container refers to and the kubelet does not
	// see yet.
	configPatience = 3 * time.Second
)

// Watcher judges a pod that should become ready, look by look.
type Watcher struct {
	patience Patience
	since    map[string]time.Time
}

// NewWatcher makes a Watcher for one pod.
func NewWatcher(p Patience) *Watcher {
	if p.Unschedulable <= 0 {
		p.Unschedulable = defaultUnschedulable
	}
	return &Watcher{patience: p, since: make(map[string]time.Time)}
}

// Trouble returns why the pod will not become ready, as far as it can be known
// by now, or nil. The error wraps ErrStartFailed or ErrExhausted.
func (w *Watcher) Trouble(pod *corev1.Pod) error {
	if pod.DeletionTimestamp != nil {
		return because("its pod is being deleted by somebody else", providers.ErrStartFailed)
	}
	if e := Ended(pod, ""); e != nil {
		return because(e.Message, providers.ErrStartFailed)
	}
	for _, c := range pod.Status.Conditions {
		if c.Type != corev1.PodScheduled || c.Status != corev1.ConditionFalse || c.Reason != corev1.PodReasonUnschedulable {
			continue
		}
		if w.lasts("unschedulable", w.patience.Unschedulable) {
			return because("no node can take its pod: "+c.Message, providers.ErrExhausted)
		}
	}
	for _, c := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		waiting := c.State.Waiting
		if waiting == nil {
			continue
		}
		switch {
		case slices.Contains(imageTroubles, waiting.Reason):
			return because(fmt.Sprintf("the image %q of container %s cannot be had: %s", c.Image, c.Name, waitsFor(waiting)), providers.ErrStartFailed)
		case slices.Contains(containerTroubles, waiting.Reason):
			if w.lasts(c.Name+"/"+waiting.Reason, configPatience) {
				return because(fmt.Sprintf("container %s cannot be made: %s", c.Name, waitsFor(waiting)), providers.ErrStartFailed)
			}
		}
	}
	return nil
}

func waitsFor(w *corev1.ContainerStateWaiting) string {
	if w.Message == "" {
		return w.Reason
	}
	return w.Reason + ": " + w.Message
}

// The reasons that a kubelet gives for a container that it cannot start.
var (
	imageTroubles     = []string{"ErrImageNeverPull", "InvalidImageName", "ErrImagePull", "ImagePullBackOff", "ImageInspectError", "SignatureValidationFailed"}
	containerTroubles = []string{"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "CrashLoopBackOff", "PostStartHookError"}
)

// NeverStarted reports whether the kubelet has given up on a container for now,
// while no container of the pod runs.
func NeverStarted(pod *corev1.Pod) bool {
	gaveUp := false
	for _, c := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if c.State.Running != nil {
			return false
		}
		if w := c.State.Waiting; w != nil && (slices.Contains(imageTroubles, w.Reason) || slices.Contains(containerTroubles, w.Reason)) {
			gaveUp = true
		}
	}
	return gaveUp
}

// lasts reports whether something has been so for a time.
func (w *Watcher) lasts(what string, patience time.Duration) bool {
	began, ok := w.since[what]
	if !ok {
		w.since[what] = time.Now()
		return false
	}
	return time.Since(began) >= patience
}

// End is how a pod or its container ended.
type End struct {
	Message string
	Failure providers.Failure
}

// Ended returns how the pod's main container, or the whole pod, ended, and nil
// while it may still run. Without a name the pod as a whole is meant.
func Ended(pod *corev1.Pod, container string) *End {
	for _, c := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		t := c.State.Terminated
		if t == nil || container != "" && c.Name != container {
			continue
		}
		if container == "" && pod.Status.Phase != corev1.PodFailed && pod.Status.Phase != corev1.PodSucceeded {
			continue
		}
		if t.ExitCode == 0 && len(pod.Status.InitContainerStatuses) > 0 && isInit(pod, c.Name) {
			continue
		}
		return &End{Message: containerEnd(pod, c.Name, t), Failure: failure(pod, t)}
	}
	if pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded {
		return &End{Message: podEnd(pod)}
	}
	return nil
}

func isInit(pod *corev1.Pod, name string) bool {
	return slices.ContainsFunc(pod.Status.InitContainerStatuses, func(c corev1.ContainerStatus) bool { return c.Name == name })
}

const (
	// oomKilled is the reason that container runtimes give. Some give it also
	// when the kernel killed one process of a container that went on, and was told
	// to end much later.
	oomKilled = "OOMKilled"
	// codeTerminated is that of a process which was told to end, and did.
	codeTerminated = 143
)

func failure(pod *corev1.Pod, t *corev1.ContainerStateTerminated) providers.Failure {
	if t.Reason == oomKilled && t.ExitCode != 0 && t.ExitCode != codeTerminated && !byDeletion(pod, t) {
		return providers.FailureOutOfMemory
	}
	return providers.FailureUnknown
}

// byDeletion reports whether a container ended after its pod was deleted, and so
// probably because of that.
func byDeletion(pod *corev1.Pod, t *corev1.ContainerStateTerminated) bool {
	if pod.DeletionTimestamp == nil {
		return false
	}
	// The timestamp is when the pod's time is up.
	asked := pod.DeletionTimestamp.Time
	if grace := pod.DeletionGracePeriodSeconds; grace != nil {
		asked = asked.Add(-time.Duration(*grace) * time.Second)
	}
	return !t.FinishedAt.Time.Before(asked)
}

// EndOf returns how one container of a pod ended, and nil where the pod says
// nothing of it: it tells of each container's present and last one only.
func EndOf(pod *corev1.Pod, containerID string) *End {
	for _, c := range pod.Status.ContainerStatuses {
		for _, t := range []*corev1.ContainerStateTerminated{c.State.Terminated, c.LastTerminationState.Terminated} {
			if t != nil && t.ContainerID == containerID {
				return &End{Message: containerEnd(pod, c.Name, t), Failure: failure(pod, t)}
			}
		}
	}
	return nil
}

func containerEnd(pod *corev1.Pod, name string, t *corev1.ContainerStateTerminated) string {
	var b strings.Builder
	if pod.Status.Reason != "" || pod.Status.Message != "" {
		b.WriteString(podEnd(pod) + "; ")
	}
	fmt.Fprintf(&b, "container %s ended with code %d", name, t.ExitCode)
	if t.Reason != "" && t.Reason != "Error" && t.Reason != "Completed" {
		b.WriteString(", " + t.Reason)
	}
	if said := strings.TrimSpace(t.Message); said != "" {
		b.WriteString(": " + Shorten(said))
	}
	return b.String()
}

// podEnd says why the whole pod ended, such as an eviction.
func podEnd(pod *corev1.Pod) string {
	text := "the pod ended"
	if pod.Status.Reason != "" {
		text += ": " + pod.Status.Reason
	}
	if pod.Status.Message != "" {
		text += ": " + Shorten(strings.TrimSpace(pod.Status.Message))
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue && c.Reason != pod.Status.Reason {
			text += " (" + c.Reason + ")"
		}
	}
	return text
}

const (
	textLimit = 1000
	cut       = "…" // where a text was
)

// Shorten bounds a text for an error.
func Shorten(text string) string {
	if len(text) <= textLimit {
		return text
	}
	return strings.ToValidUTF8(text[:textLimit], "") + cut
}

const (
	eventsRead = 100
	eventsTold = 4
)

// Warning is what the cluster said about an object.
type Warning struct{ Reason, Message string }

// Events returns the last warnings about an object, each once, and none where
// they cannot be read.
func Events(ctx context.Context, client corev1client.EventsGetter, namespace string, uid types.UID) []Warning {
	list, err := client.Events(namespace).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("involvedObject.uid", string(uid)).String(), Limit: eventsRead,
	})
	if err != nil {
		return nil
	}
	var said []Warning
	for _, e := range slices.Backward(list.Items) {
		w := Warning{e.Reason, Shorten(strings.TrimSpace(e.Message))}
		if e.Type != corev1.EventTypeWarning || slices.Contains(said, w) {
			continue
		}
		if said = append(said, w); len(said) == eventsTold {
			break
		}
	}
	slices.Reverse(said)
	return said
}
