package kube

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
)

// AwaitPodGone waits until a deleted pod is gone. Once the kubelet has reported
// the end of all containers, AwaitPodGone removes the pod from the cluster: the
// kubelet's remaining cleanup continues without it and would take the better part
// of a second. A pod with volume claims is left to the kubelet, so that no other
// pod gets a volume that is still mounted.
func AwaitPodGone(ctx context.Context, pods typedcorev1.PodInterface, gone *corev1.Pod) error {
	taken := false
	object := Object[*corev1.Pod]{Name: gone.Name, Get: pods.Get, Watch: pods.Watch}
	return Follow(ctx, object, func(pod *corev1.Pod, exists bool) (bool, error) {
		if !exists || pod.UID != gone.UID {
			return true, nil
		}
		if !taken && pod.DeletionTimestamp != nil && stopped(pod) && !claimsVolume(pod) {
			taken = true
			// If this fails, the kubelet's own deletion follows.
			_ = pods.Delete(ctx, pod.Name, metav1.DeleteOptions{
				GracePeriodSeconds: new(int64), Preconditions: &metav1.Preconditions{UID: &pod.UID},
			})
		}
		return false, nil
	})
}

// stopped reports whether the kubelet has reported the end of every container. The
// phase is not enough: a pod of a lost node is Failed while it may still run.
func stopped(pod *corev1.Pod) bool {
	if len(pod.Status.ContainerStatuses) != len(pod.Spec.Containers) {
		return false
	}
	for _, c := range pod.Status.ContainerStatuses {
		if c.State.Terminated == nil {
			return false
		}
	}
	return !slices.ContainsFunc(slices.Concat(pod.Status.InitContainerStatuses, pod.Status.EphemeralContainerStatuses),
		func(c corev1.ContainerStatus) bool { return c.State.Running != nil })
}

func claimsVolume(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return v.PersistentVolumeClaim != nil || v.Ephemeral != nil || v.CSI != nil
	})
}
