package kube

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sandgate/sandgate/providers"
)

// Runtimes say OOMKilled of a container also where the kernel killed one of its
// processes long before it was made to end.
func TestOOMKilledIsBelievedOnlyAtTheEnd(t *testing.T) {
	now, grace := time.Now().Truncate(time.Second), int64(30)
	deleted := metav1.NewTime(now.Add(time.Duration(grace) * time.Second)) // asked for now
	for name, c := range map[string]struct {
		reason   string
		code     int32
		deleted  *metav1.Time
		finished time.Time
		want     providers.Failure
	}{
		"C5 killed for its memory":          {"OOMKilled", 137, nil, now, providers.FailureOutOfMemory},
		"C5 its child was":                  {"OOMKilled", 1, nil, now, providers.FailureOutOfMemory},
		"C5 killed, and deleted afterwards": {"OOMKilled", 137, &deleted, now.Add(-5 * time.Second), providers.FailureOutOfMemory},
		"killed because it was deleted":     {"OOMKilled", 137, &deleted, now.Add(30 * time.Second), providers.FailureUnknown},
		"told to end":                       {"OOMKilled", 143, nil, now, providers.FailureUnknown},
		"ended in order":                    {"OOMKilled", 0, nil, now, providers.FailureUnknown},
		"killed":                            {"Error", 137, nil, now, providers.FailureUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{}
			pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = c.deleted, &grace
			pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", State: corev1.ContainerState{
				Terminated: &corev1.ContainerStateTerminated{
					ContainerID: "containerd://1", Reason: c.reason, ExitCode: c.code, FinishedAt: metav1.NewTime(c.finished),
				},
			}}}
			for what, end := range map[string]*End{"Ended": Ended(pod, "main"), "EndOf": EndOf(pod, "containerd://1")} {
				if end == nil || end.Failure != c.want {
					t.Errorf("%s: %+v, want %v", what, end, c.want)
				}
			}
			if end := EndOf(pod, "containerd://2"); end != nil {
				t.Errorf("of another: %+v", end)
			}
		})
	}
}
