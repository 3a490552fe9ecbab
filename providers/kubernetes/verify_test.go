package kubernetes

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/kube"
	shared "github.com/sandgate/sandgate/providers/internal/record"
)

// What was seen counts more than what the operator states, and a statement more than
// nothing.
func TestNetworkEnforcement(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	const interval = 6 * time.Hour
	for name, c := range map[string]struct {
		last     verification
		interval time.Duration
		stated   bool
		want     bool
		detail   string
	}{
		"none, nothing stated":      {interval: interval, detail: "not known: the verification has not ended yet"},
		"none, stated":              {interval: interval, stated: true, want: true, detail: "not verified: the verification has not ended yet"},
		"never":                     {last: verification{Verdict: verdictOpen, Time: now}, detail: "this server does not verify it"},
		"never, stated":             {last: verification{Verdict: verdictOpen, Time: now}, stated: true, want: true, detail: "this server does not verify it"},
		"enforced":                  {last: verification{Verdict: verdictEnforced, Time: now}, interval: interval, want: true, detail: "kept a pod from another one at 2026-01-02T03:04:05Z"},
		"open":                      {last: verification{Verdict: verdictOpen, Time: now}, interval: interval, detail: "connected to another one at 2026-01-02T03:04:05Z"},
		"open, whatever is stated":  {last: verification{Verdict: verdictOpen, Time: now}, interval: interval, stated: true, detail: "although --kubernetes-network-policies states that it does"},
		"unknown":                   {last: verification{Verdict: verdictUnknown, Reason: "no node", Time: now}, interval: interval, detail: "not known: no node"},
		"unknown, stated":           {last: verification{Verdict: verdictUnknown, Reason: "no node", Time: now}, interval: interval, stated: true, want: true, detail: "not verified: no node"},
		"enforced, nearly outdated": {last: verification{Verdict: verdictEnforced, Time: now.Add(-17 * time.Hour)}, interval: interval, want: true, detail: "kept a pod"},
		"enforced, outdated":        {last: verification{Verdict: verdictEnforced, Time: now.Add(-19 * time.Hour)}, interval: interval, detail: "it was last verified at 2026-01-01T08:04:05Z"},
	} {
		t.Run(name, func(t *testing.T) {
			config := Config{NetworkPolicies: c.stated}
			got := config.networkEnforcement(c.last.current(now, c.interval))
			if got.Name != "network" || got.Enforced != c.want || !strings.Contains(got.Detail, c.detail) {
				t.Errorf("%+v", got)
			}
		})
	}
}

// Nothing but a connection that the policy stopped, and that came back without it,
// shows that the policy is enforced.
func TestVerificationOutcome(t *testing.T) {
	ends := func(codes map[string]int32) *corev1.Pod {
		pod := &corev1.Pod{}
		for name, code := range codes {
			status := corev1.ContainerStatus{Name: name, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code}}}
			if name == stepAfter {
				pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, status)
			} else {
				pod.Status.InitContainerStatuses = append(pod.Status.InitContainerStatuses, status)
			}
		}
		return pod
	}
	failed := errors.New("its pod has ended")
	for name, c := range map[string]struct {
		codes map[string]int32
		want  verdict
		why   string
	}{
		"denied, and back":  {map[string]int32{stepBefore: 0, stepUnder: 0, stepAfter: 0}, verdictEnforced, ""},
		"never denied":      {map[string]int32{stepBefore: 0, stepUnder: notReachedCode}, verdictOpen, ""},
		"never reached":     {map[string]int32{stepBefore: notReachedCode}, verdictUnknown, "without the policy either"},
		"not back":          {map[string]int32{stepBefore: 0, stepUnder: 0, stepAfter: notReachedCode}, verdictUnknown, "any more"},
		"an older agent":    {map[string]int32{stepBefore: 2}, verdictUnknown, "its pod has ended"},
		"killed meanwhile":  {map[string]int32{stepBefore: 0, stepUnder: 137}, verdictUnknown, "its pod has ended"},
		"killed at the end": {map[string]int32{stepBefore: 0, stepUnder: 0, stepAfter: 137}, verdictUnknown, "its pod has ended"},
		"never started":     {nil, verdictUnknown, "its pod has ended"},
	} {
		t.Run(name, func(t *testing.T) {
			got := outcome(ends(c.codes), failed)
			if got.Verdict != c.want || !strings.Contains(got.Reason, c.why) || got.Time.IsZero() {
				t.Errorf("%+v", got)
			}
		})
	}
}

// The pods meet the floor of sandboxes, whatever the transport of agents, and the policy
// does not select them before they are labelled.
func TestVerifierPods(t *testing.T) {
	for _, transport := range []Transport{TransportExec, TransportPodIP} {
		p, _ := fakeProvider(t)
		p.config.Transport, p.config.AgentPort = transport, 7778
		pl, err := p.verifierPlan()
		if err != nil {
			t.Fatal(err)
		}
		for _, pod := range []*corev1.Pod{pl.listener("a"), pl.connector("b", "10.0.0.1:7778")} {
			if err := kube.CheckRestricted(&pod.ObjectMeta, &pod.Spec); err != nil {
				t.Errorf("%v: %s: %v", transport, pod.Name, err)
			}
			if pod.Labels[labelNetwork] != "" || pod.Labels[labelKind] != kindVerifier || pod.Spec.ActiveDeadlineSeconds == nil {
				t.Errorf("%s: %v, deadline %v", pod.Name, pod.Labels, pod.Spec.ActiveDeadlineSeconds)
			}
			for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
				if c.Resources.Limits.Memory().IsZero() || len(c.Env) > 0 || c.Image != "agent:1" {
					t.Errorf("%s: %+v", pod.Name, c)
				}
			}
		}
	}
}

// playCluster has pods run as soon as they are made. The one that connects ends its
// steps as its labels have it where the policy is enforced, or not.
func playCluster(client *fake.Clientset, enforced bool) {
	started := func(names ...string) []corev1.ContainerStatus {
		var out []corev1.ContainerStatus
		for _, name := range names {
			out = append(out, corev1.ContainerStatus{Name: name, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}})
		}
		return out
	}
	end := func(name string, code int32) corev1.ContainerStatus {
		return corev1.ContainerStatus{Name: name, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code}}}
	}
	client.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		pod := a.(clienttesting.CreateAction).GetObject().(*corev1.Pod)
		pod.UID, pod.Status.PodIP = "uid-"+pod.UID, "10.0.0.1"
		if len(pod.Spec.InitContainers) == 1 {
			pod.Status.ContainerStatuses = started(containerName)
		} else {
			pod.Status.InitContainerStatuses = append([]corev1.ContainerStatus{end(stepBefore, 0)}, started(stepUnder)...)
		}
		return false, nil, nil
	})
	client.PrependReactor("patch", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		patch := a.(clienttesting.PatchAction)
		have, err := client.Tracker().Get(a.GetResource(), a.GetNamespace(), patch.GetName())
		if err != nil {
			return true, nil, err
		}
		pod := have.(*corev1.Pod).DeepCopy()
		if strings.Contains(string(patch.GetPatch()), "none") {
			pod.Labels[labelNetwork] = "none"
			code := int32(notReachedCode)
			if enforced {
				code = 0
			}
			pod.Status.InitContainerStatuses = []corev1.ContainerStatus{end(stepBefore, 0), end(stepUnder, code)}
			if !enforced {
				pod.Status.Phase = corev1.PodFailed
			}
		} else {
			delete(pod.Labels, labelNetwork)
			pod.Status.Phase, pod.Status.ContainerStatuses = corev1.PodSucceeded, []corev1.ContainerStatus{end(stepAfter, 0)}
		}
		return true, pod, client.Tracker().Update(a.GetResource(), pod, a.GetNamespace())
	})
}

// The server that leads verifies, the others learn what it found, and no pod is left,
// neither of it nor of one before it.
func TestKeepVerified(t *testing.T) {
	for _, enforced := range []bool{true, false} {
		p, client := fakeProvider(t)
		p.config.VerifyNetwork, p.config.NetworkPolicies = 6*time.Hour, !enforced
		playCluster(client, enforced)
		_, err := client.CoreV1().Pods("ns").Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Name: "left", Labels: map[string]string{managedBy: managedByValue, labelKind: kindVerifier},
		}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		written := make(chan struct{}, 1)
		client.PrependReactor("create", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
			written <- struct{}{}
			return false, nil, nil
		})
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			p.keepVerified(ctx)
		}()
		<-written
		cancel()
		<-ended

		follower, _ := fakeProvider(t)
		follower.client, follower.Core, follower.config = client, client.CoreV1(), p.config
		follower.recallVerification(t.Context())
		rec := &record{Sandbox: shared.New(providers.Spec{Network: providers.NetworkProxy}), Phase: phaseActive, NotEnforced: []string{"network", "processes"}}
		for _, server := range []*Provider{p, follower} {
			if got := server.network(); got.Enforced != enforced {
				t.Errorf("%+v", got)
			}
			if got := server.infoOf("x", rec).NotEnforced; slices.Contains(got, "network") == enforced || !slices.Contains(got, "processes") {
				t.Errorf("of a sandbox: %q", got)
			}
		}
		list, err := client.CoreV1().Pods("ns").List(t.Context(), metav1.ListOptions{})
		if err != nil || len(list.Items) > 0 {
			t.Errorf("%d pods are left, %v", len(list.Items), err)
		}
	}
}
