package kube

import (
	"context"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// Only what the kubelet says has ended is taken from it.
func TestOnlyTheKubeletReportsAPodGone(t *testing.T) {
	ended := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}
	runs := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	for name, c := range map[string]struct {
		change func(*corev1.Pod)
		taken  bool
	}{
		"all has ended": {func(*corev1.Pod) {}, true},
		"a container runs": {func(p *corev1.Pod) {
			p.Status.ContainerStatuses[1].State = runs
		}, false},
		"nothing is known of one": {func(p *corev1.Pod) {
			p.Status.ContainerStatuses = p.Status.ContainerStatuses[:1]
		}, false},
		"an init container runs beside": {func(p *corev1.Pod) {
			p.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "beside", State: runs}}
		}, false},
		"failed on a lost node": {func(p *corev1.Pod) {
			p.Status.Phase = corev1.PodFailed
			p.Status.ContainerStatuses[0].State = runs
		}, false},
		"it is not being deleted": {func(p *corev1.Pod) { p.DeletionTimestamp = nil }, false},
		"it has a volume claim": {func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"},
			}}}
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			now := metav1.Now()
			pod := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pod", UID: "u", DeletionTimestamp: &now, Finalizers: []string{"x/y"}},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "a"}, {Name: "b"}}},
				Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{
					{Name: "a", State: ended}, {Name: "b", State: ended},
				}},
			}
			c.change(pod)
			client := fake.NewClientset(pod)
			enough, limit := errors.New("enough"), 500*time.Millisecond
			if c.taken {
				limit = waitTimeout // this client's watches miss what was before them
			}
			ctx, cancel := context.WithTimeoutCause(t.Context(), limit, enough)
			defer cancel()
			err := AwaitPodGone(ctx, client.CoreV1().Pods("ns"), pod)
			taken := 0
			for _, a := range client.Actions() {
				if d, ok := a.(clienttesting.DeleteActionImpl); ok {
					taken++
					if o := d.DeleteOptions; o.GracePeriodSeconds == nil || *o.GracePeriodSeconds != 0 || o.Preconditions == nil || *o.Preconditions.UID != "u" {
						t.Errorf("it was deleted with %+v", o)
					}
				}
			}
			switch {
			case c.taken && (err != nil || taken != 1):
				t.Errorf("taken %d times: %v", taken, err)
			case !c.taken && (!errors.Is(err, enough) || taken != 0):
				t.Errorf("taken %d times: %v", taken, err)
			}
		})
	}
}
