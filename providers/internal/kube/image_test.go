package kube

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestImageDigest(t *testing.T) {
	hex := strings.Repeat("0a", 32)
	digest := "sha256:" + hex
	for id, want := range map[string]string{
		"docker.io/library/python@" + digest:               digest, // containerd, CRI-O
		"registry.example:5000/team/a@" + digest:           digest,
		"docker-pullable://python@" + digest:               digest, // dockershim, cri-dockerd
		"docker.io/a/b@sha512:" + strings.Repeat("0a", 64): "sha512:" + strings.Repeat("0a", 64),
		digest:                            "", // loaded by hand
		"docker://" + digest:              "",
		hex:                               "",
		"docker.io/library/python:3.12":   "",
		"python@sha256:0a0a":              "",
		"python@" + digest + "0a":         "",
		"python@sha256:" + hex[:63] + "G": "",
		"":                                "",
	} {
		pod := &corev1.Pod{Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{
			{Name: "other", ImageID: "other@" + digest[:len(digest)-1] + "f"}, {Name: "sandbox", ImageID: id},
		}}}
		if got := ImageDigest(pod, "sandbox"); got != want {
			t.Errorf("%q: %q, want %q", id, got, want)
		}
		if got := ImageDigest(pod, "none"); got != "" {
			t.Errorf("no such container: %q", got)
		}
	}
}
