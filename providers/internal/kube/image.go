package kube

import (
	"regexp"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// imageReference is a reference with the digest of a manifest, which a registry knows.
var imageReference = regexp.MustCompile(`^(?:[a-z-]+://)?[^@\s]+@(sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128})$`)

// ImageDigest returns the digest of the image that a container of a pod runs, or "".
// An image that was not pulled, but loaded by hand, has only an id of its node: the
// digest of its configuration, with which no registry finds it.
func ImageDigest(pod *corev1.Pod, container string) string {
	i := slices.IndexFunc(pod.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool { return c.Name == container })
	if i < 0 {
		return ""
	}
	if m := imageReference.FindStringSubmatch(pod.Status.ContainerStatuses[i].ImageID); m != nil {
		return m[1]
	}
	return ""
}
