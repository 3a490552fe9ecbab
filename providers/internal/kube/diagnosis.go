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

// Grace is how long a state may last that can pass by itself.
type Grace struct {
	// Unschedulable is the time for a node to be free or to be added. 0: 15 s.
	Unschedulable time.Duration
}

const (
	defaultUnschedulable = 15 * time.Second
	// configGrace is for objects that a container refers to and the kubelet does
	// not see yet.
	configGrace = 3 * time.Second
)

// Diagnosis finds out why a pod does not become ready.
type Diagnosis struct {
	grace Grace
	since map[string]time.Time
}

// NewDiagnosis returns a Diagnosis for one pod.
func NewDiagnosis(g Grace) *Diagnosis {
	if g.Unschedulable <= 0 {
		g.Unschedulable = defaultUnschedulable
	}
	return &Diagnosis{grace: g, since: make(map[string]time.Time)}
}

// Check returns why the pod, in its state at this call, will not become ready, or
// nil. The error wraps ErrStartFailed or ErrExhausted.
func (d *Diagnosis) Check(pod *corev1.Pod) error {
	if pod.DeletionTimestamp != nil {
		return withMessage("its pod is being deleted by another client", providers.ErrStartFailed)
	}
	if e := Ended(pod, ""); e != nil {
		return withMessage(e.Message, providers.ErrStartFailed)
	}
	for _, c := range pod.Status.Conditions {
		if c.Type != corev1.PodScheduled || c.Status != corev1.ConditionFalse || c.Reason != corev1.PodReasonUnschedulable {
			continue
		}
		if d.lasts("unschedulable", d.grace.Unschedulable) {
			return withMessage("no node can take its pod: "+c.Message, providers.ErrExhausted)
		}
	}
	for _, c := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		waiting := c.State.Waiting
		if waiting == nil {
			continue
		}
		switch {
		case slices.Contains(imageTroubles, waiting.Reason):
			return withMessage(fmt.Sprintf("the image %q of container %s cannot be pulled: %s", c.Image, c.Name, waitReason(waiting)), providers.ErrStartFailed)
		case slices.Contains(containerTroubles, waiting.Reason):
			if d.lasts(c.Name+"/"+waiting.Reason, configGrace) {
				return withMessage(fmt.Sprintf("container %s cannot be created: %s", c.Name, waitReason(waiting)), providers.ErrStartFailed)
			}
		}
	}
	return nil
}

func waitReason(w *corev1.ContainerStateWaiting) string {
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

// lasts reports whether a state has lasted for the grace.
func (d *Diagnosis) lasts(state string, grace time.Duration) bool {
	began, ok := d.since[state]
	if !ok {
		d.since[state] = time.Now()
		return false
	}
	return time.Since(began) >= grace
}

// End is how a pod or its container ended.
type End struct {
	Message string
	Failure providers.Failure
}

// Ended returns how a container of the pod ended, or without a name the whole pod.
// It returns nil while that may still run.
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
	// oomKilled is the reason that container runtimes give. Some give it also for a
	// container that survived the kill of one process and was stopped much later.
	oomKilled = "OOMKilled"
	// codeTerminated is the exit code of a process that SIGTERM ended.
	codeTerminated = 143
)

func failure(pod *corev1.Pod, t *corev1.ContainerStateTerminated) providers.Failure {
	if t.Reason == oomKilled && t.ExitCode != 0 && t.ExitCode != codeTerminated && !byDeletion(pod, t) {
		return providers.FailureOutOfMemory
	}
	return providers.FailureUnknown
}

// byDeletion reports whether a container ended after the deletion of its pod, which
// is then the probable cause.
func byDeletion(pod *corev1.Pod, t *corev1.ContainerStateTerminated) bool {
	if pod.DeletionTimestamp == nil {
		return false
	}
	// The timestamp is the end of the grace period.
	deleted := pod.DeletionTimestamp.Time
	if grace := pod.DeletionGracePeriodSeconds; grace != nil {
		deleted = deleted.Add(-time.Duration(*grace) * time.Second)
	}
	return !t.FinishedAt.Time.Before(deleted)
}

// EndOf returns how one container of a pod ended, or nil if the pod's status does
// not contain it: the status has the current and the last container only.
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
	if message := strings.TrimSpace(t.Message); message != "" {
		b.WriteString(": " + Shorten(message))
	}
	return b.String()
}

// podEnd describes why the whole pod ended, such as an eviction.
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
	cut       = "…" // marks a shortened text
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
	eventsKept = 4
)

// Warning is an event of the type Warning about an object.
type Warning struct{ Reason, Message string }

// Events returns the last warnings about an object, without duplicates. It returns
// none if they cannot be read.
func Events(ctx context.Context, client corev1client.EventsGetter, namespace string, uid types.UID) []Warning {
	list, err := client.Events(namespace).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("involvedObject.uid", string(uid)).String(), Limit: eventsRead,
	})
	if err != nil {
		return nil
	}
	var warnings []Warning
	for _, e := range slices.Backward(list.Items) {
		w := Warning{e.Reason, Shorten(strings.TrimSpace(e.Message))}
		if e.Type != corev1.EventTypeWarning || slices.Contains(warnings, w) {
			continue
		}
		if warnings = append(warnings, w); len(warnings) == eventsKept {
			break
		}
	}
	slices.Reverse(warnings)
	return warnings
}
