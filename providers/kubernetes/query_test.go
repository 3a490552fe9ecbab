package kubernetes

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/kube"
	shared "github.com/sandgate/sandgate/providers/internal/record"
)

func fakeProvider(t *testing.T) (*Provider, *fake.Clientset) {
	t.Helper()
	config, err := Config{AgentImage: "agent:1"}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	client := fake.NewClientset()
	log := slog.New(slog.DiscardHandler)
	p := &Provider{
		Servers: kube.Servers{Leases: client.CoordinationV1(), Core: client.CoreV1(), Namespace: "ns", Prefix: leasePrefix, Log: log},
		config:  config, client: client, agents: kube.NewAgents(nil, TransportExec, log),
	}
	p.pools = p.newPools()
	return p, client
}

func put(t *testing.T, client *fake.Clientset, name string, rec record) {
	t.Helper()
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns"}}
	if err := rec.put(cm); err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().ConfigMaps("ns").Create(t.Context(), cm, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// TestEndOfTheSubstrateIsPassedOn: what the substrate says of an end is passed on.
func TestEndOfTheSubstrateIsPassedOn(t *testing.T) {
	ended := func(reason, message string) corev1.PodStatus {
		return corev1.PodStatus{Phase: corev1.PodFailed, ContainerStatuses: []corev1.ContainerStatus{{
			Name: containerName, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, Reason: reason, Message: message}},
		}}}
	}
	for _, c := range []struct {
		name    string
		uid     string
		status  corev1.PodStatus
		leaving bool
		none    bool
		state   providers.State
		failure providers.Failure
		says    string
	}{
		{name: "runs", uid: "u", status: corev1.PodStatus{Phase: corev1.PodRunning}, state: providers.StateActive},
		{name: "out of memory", uid: "u", status: ended("OOMKilled", ""), state: providers.StateFailed, failure: providers.FailureOutOfMemory, says: "OOMKilled"},
		{name: "ended", uid: "u", status: ended("Error", "last words"), state: providers.StateFailed, says: "code 137: last words"},
		{name: "evicted", uid: "u", status: corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted", Message: "The node was low on resource"}, state: providers.StateFailed, says: "Evicted: The node was low"},
		{name: "being deleted", uid: "u", status: corev1.PodStatus{Phase: corev1.PodRunning}, leaving: true, state: providers.StateFailed, says: "being deleted"},
		{name: "another pod", uid: "v", status: corev1.PodStatus{Phase: corev1.PodRunning}, state: providers.StateFailed, says: "gone"},
		{name: "no pod", none: true, state: providers.StateFailed, says: "gone"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, client := fakeProvider(t)
			put(t, client, "one", record{Sandbox: shared.New(providers.Spec{Tenant: "t", ID: "1"}), Phase: phaseActive, Namespace: "ns", Pod: "one", UID: "u"})
			if !c.none {
				pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "one", Namespace: "ns", UID: "x", Labels: podLabels("one", "t", "", nil)}, Status: c.status}
				pod.UID = "u"
				if c.uid != "u" {
					pod.UID = "v"
				}
				if c.leaving {
					now := metav1.Now()
					pod.DeletionTimestamp, pod.Finalizers = &now, []string{"x/y"}
				}
				if err := client.Tracker().Add(pod); err != nil {
					t.Fatal(err)
				}
			}
			info, err := p.Get(t.Context(), "one")
			if err != nil || info.State != c.state || info.Failure != c.failure || !strings.Contains(info.Message, c.says) {
				t.Errorf("get: %v %v %q, %v", info.State, info.Failure, info.Message, err)
			}
			page, err := p.List(t.Context(), providers.Query{Limit: 10})
			if err != nil || len(page.Sandboxes) != 1 || page.Sandboxes[0].State != c.state {
				t.Errorf("list: %+v, %v", page, err)
			}
		})
	}
}

func TestTokenThatExpired(t *testing.T) {
	p, client := fakeProvider(t)
	for _, c := range []struct{ said, want error }{
		{apierrors.NewResourceExpired("too old"), providers.ErrTokenExpired},
		{apierrors.NewBadRequest("continue key is not valid"), providers.ErrTokenInvalid},
		{apierrors.NewTimeoutError("slow", 1), providers.ErrUnavailable},
	} {
		client.PrependReactor("list", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, c.said })
		if _, err := p.List(t.Context(), providers.Query{Limit: 1, Token: tokens.Encode("abc")}); !errors.Is(err, c.want) {
			t.Errorf("%v: %v", c.said, err)
		}
	}
}

// TestForeignConfigMapIsNoSandbox: what others keep in the namespace is no sandbox.
func TestForeignConfigMapIsNoSandbox(t *testing.T) {
	p, client := fakeProvider(t)
	_, err := client.CoreV1().ConfigMaps("ns").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "theirs"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Get(t.Context(), "theirs"); !errors.Is(err, providers.ErrNotFound) {
		t.Errorf("get: %v", err)
	}
	if err := p.Delete(t.Context(), "theirs", providers.Condition{}); !errors.Is(err, providers.ErrNotFound) {
		t.Errorf("delete: %v", err)
	}
	if _, _, err := p.Create(t.Context(), "theirs", withOptions("")); !errors.Is(err, providers.ErrStartFailed) {
		t.Errorf("create over it: %v", err)
	}
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	if _, _, err := p.Create(ctx, "theirs", withOptions("")); !errors.Is(err, why) {
		t.Errorf("create: %v", err)
	}
}

// TestLabelsThatTheClusterCannotHold are matched all the same.
func TestLabelsThatTheClusterCannotHold(t *testing.T) {
	p, client := fakeProvider(t)
	odd := map[string]string{"a key with blanks": "a value: with all kinds of things", "plain": "x"}
	for name, labels := range map[string]map[string]string{"one": odd, "two": {"plain": "x"}} {
		put(t, client, name, record{Sandbox: shared.New(providers.Spec{Tenant: "tenant / one", Labels: labels}), Phase: phaseCreating})
	}
	page, err := p.List(t.Context(), providers.Query{Tenant: "tenant / one", Labels: odd, Limit: 10})
	if err != nil || len(page.Sandboxes) != 1 || page.Sandboxes[0].Name != "one" {
		t.Errorf("%+v, %v", page, err)
	}
}
