package agentsandbox

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	k8stesting "k8s.io/client-go/testing"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/kube"
)

// With auto an agent whose Secret may not be made has no port.
func TestListenWithoutASecret(t *testing.T) {
	secrets := schema.GroupResource{Resource: "secrets"}
	for _, c := range []struct {
		name      string
		transport Transport
		err, want error
		port      int32
	}{
		{"a Secret", TransportAuto, nil, nil, 7778},
		{"forbidden", TransportAuto, apierrors.NewForbidden(secrets, "", nil), nil, 0},
		{"over a quota", TransportAuto, apierrors.NewForbidden(secrets, "", errors.New("exceeded quota: secrets")), nil, 0},
		{"no answer", TransportAuto, errors.New("connection reset"), providers.ErrUnavailable, 7778},
		{"forbidden", TransportPodIP, apierrors.NewForbidden(secrets, "", nil), providers.ErrForbidden, 7778},
	} {
		t.Run(c.name+", "+string(c.transport), func(t *testing.T) {
			cluster := newCluster(t)
			cluster.p.config.Transport, cluster.p.config.AgentPort = c.transport, 7778
			cluster.core.PrependReactor("create", "secrets", func(k8stesting.Action) (bool, runtime.Object, error) {
				return c.err != nil, nil, c.err
			})
			var got kube.Injection
			err := cluster.p.listen(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "pod", UID: "uid"}}, &got)
			if !errors.Is(err, c.want) || got.Port != c.port {
				t.Errorf("port %d, %v", got.Port, err)
			}
		})
	}
}

// A pod that waited for its agent when the pools changed gets it later.
func TestPoolInjectorForgetsWhatItLeaves(t *testing.T) {
	c := newCluster(t)
	in := newPoolInjector(t.Context(), c.p)
	for range injectAtOnce {
		in.slots <- struct{}{}
	}
	c.pod("warm", "warm", func(pod *corev1.Pod) {
		pod.Labels = map[string]string{poolHashLabel: "x"}
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	})
	pod, err := c.core.CoreV1().Pods(testNamespace).Get(t.Context(), "warm", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	in.see(ctx, keptFor{}, pod)
	in.mu.Lock()
	if !in.failed[pod.UID] {
		t.Error("it does not wait")
	}
	in.mu.Unlock()
	stop()
	in.running.Wait()
	if len(in.failed) > 0 {
		t.Errorf("%v get no agent any more", in.failed)
	}
}
