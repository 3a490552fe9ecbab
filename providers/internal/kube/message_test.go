package kube

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/sandgate/sandgate/providers"
)

// What the kubelet says of a container it says again in events, in other words.
func TestExplanationNamesEachCauseOnce(t *testing.T) {
	const why = `rpc error: code = NotFound desc = failed to resolve reference "x:1": not found`
	pod := &corev1.Pod{}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", Image: "x:1", State: corev1.ContainerState{
		Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: why},
	}}}
	err := Explain(NewDiagnosis(Grace{}).Check(pod), []Warning{
		{"Failed", `Failed to pull image "x:1": ` + why},
		{"Failed", "Error: ErrImagePull"},
		{"Failed", "Error: ImagePullBackOff"},
	})
	if want := `the image "x:1" of container main cannot be pulled: ErrImagePull: ` + why; err.Error() != want || !errors.Is(err, providers.ErrStartFailed) {
		t.Errorf("%v, want %s", err, want)
	}

	for _, c := range []struct{ text, event, want string }{
		{"no node can take its pod: 0/1 nodes are available", "0/1 nodes are available", "no node can take its pod: 0/1 nodes are available"},
		{"no node can take its pod: " + strings.Repeat("long ", 300), Shorten(strings.Repeat("long ", 300)), "no node can take its pod: " + strings.Repeat("long ", 300)},
		{"no node can take its pod: 0/1", "volume busy", "no node can take its pod: 0/1; the cluster reports: Why: volume busy"},
	} {
		err := Explain(fmt.Errorf("%s: %w", c.text, providers.ErrExhausted), []Warning{{"Why", c.event}})
		if err.Error() != c.want || !errors.Is(err, providers.ErrExhausted) {
			t.Errorf("%v, want %s", err, c.want)
		}
	}
}

func TestNoKubeconfig(t *testing.T) {
	_, _, err := Load(Cluster{Kubeconfig: "/nonexistent"}, nil)
	if !errors.Is(err, providers.ErrInvalid) || err.Error() != "the cluster's client cannot be configured: stat /nonexistent: no such file or directory" {
		t.Errorf("%v", err)
	}
}
