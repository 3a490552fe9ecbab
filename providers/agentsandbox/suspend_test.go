package agentsandbox

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/kube"
)

const testNamespace = "ns"

// cluster is one without controllers: the test does what they would.
type cluster struct {
	t    *testing.T
	p    *Provider
	core *fake.Clientset
	dyn  *dynamicfake.FakeDynamicClient
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	dyn := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{
		claimsResource: "SandboxClaimList", sandboxesResource: "SandboxList", poolsResource: "SandboxWarmPoolList", templatesResource: "SandboxTemplateList",
	})
	core := fake.NewClientset()
	return &cluster{t: t, core: core, dyn: dyn, p: &Provider{
		Servers: kube.Servers{Core: core.CoreV1(), Namespace: testNamespace, Log: slog.New(slog.DiscardHandler)}, networking: core.NetworkingV1(),
		agents:    kube.NewAgents(nil, TransportExec, slog.New(slog.DiscardHandler)),
		claims:    newKind[claim](dyn, claimsResource, testNamespace, "SandboxClaim"),
		sandboxes: newKind[sandbox](dyn, sandboxesResource, testNamespace, sandboxKind),
		pools:     newKind[warmPool](dyn, poolsResource, testNamespace, "SandboxWarmPool"),
		templates: newKind[template](dyn, templatesResource, testNamespace, "SandboxTemplate"),
	}}
}

// sandbox makes a claim and its Sandbox, as they are in a mode.
func (c *cluster) sandbox(name, mode string, ready metav1.Condition) {
	c.t.Helper()
	r := newRecord(providers.Spec{ID: "d1", Template: "plain", TemplateOptions: []byte(`{"pool": "p"}`)})
	text, err := r.encode()
	if err != nil {
		c.t.Error(err)
	}
	made := &claim{ObjectMeta: metav1.ObjectMeta{
		Name: name, Namespace: testNamespace, UID: "claim", Labels: recordLabels(kindSandbox, r.Spec), Annotations: map[string]string{annotationRecord: text},
	}}
	if _, err := c.p.claims.create(c.t.Context(), made); err != nil {
		c.t.Error(err)
	}
	b := &sandbox{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: testNamespace, UID: "sandbox"}}
	b.Spec.OperatingMode = mode
	if _, err := c.p.sandboxes.create(c.t.Context(), b); err != nil {
		c.t.Error(err)
	}
	c.say(name, ready)
}

// say sets what the claim's controller says.
func (c *cluster) say(name string, conditions ...metav1.Condition) {
	c.t.Helper()
	all := make([]any, 0, len(conditions))
	for _, condition := range conditions {
		fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&condition)
		if err != nil {
			c.t.Error(err)
		}
		all = append(all, fields)
	}
	if _, err := c.p.claims.patch(c.t.Context(), name, map[string]any{"status": map[string]any{
		"sandbox": map[string]any{"name": name}, "conditions": all,
	}}); err != nil {
		c.t.Error(err)
	}
}

func (c *cluster) pod(name, uid string, change func(*corev1.Pod)) {
	c.t.Helper()
	pod := &corev1.Pod{}
	pod.Name, pod.Namespace, pod.UID = name, testNamespace, types.UID(uid)
	controls := true
	pod.OwnerReferences = []metav1.OwnerReference{{Kind: sandboxKind, Name: name, UID: "sandbox", Controller: &controls}}
	pod.Spec.Containers = []corev1.Container{{Name: "main"}}
	pod.Status.Phase = corev1.PodRunning
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: "main", ContainerID: "containerd://" + uid, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
	}}
	if change != nil {
		change(pod)
	}
	if _, err := c.core.CoreV1().Pods(testNamespace).Create(c.t.Context(), pod, metav1.CreateOptions{}); err != nil {
		c.t.Error(err)
	}
}

// onceMode does something as soon as somebody has set the Sandbox's mode, after
// the answer of the cluster.
func (c *cluster) onceMode(name, mode string, do func()) {
	c.t.Helper()
	w, err := c.dyn.Resource(sandboxesResource).Namespace(testNamespace).Watch(c.t.Context(), metav1.ListOptions{})
	if err != nil {
		c.t.Error(err)
	}
	done := make(chan struct{})
	c.t.Cleanup(func() { w.Stop(); <-done })
	go func() {
		defer close(done)
		for range w.ResultChan() {
			b, err := c.p.sandboxes.get(c.t.Context(), name)
			if err == nil && b.mode() == mode {
				do()
				return
			}
		}
	}()
}

func (c *cluster) set(name, mode string) {
	if err := c.p.setMode(c.t.Context(), observed{sandbox: name}, mode); err != nil {
		c.t.Error(err)
	}
}

var (
	isReady     = metav1.Condition{Type: conditionReady, Status: metav1.ConditionTrue, Reason: "DependenciesReady"}
	isSuspended = metav1.Condition{Type: conditionReady, Status: metav1.ConditionFalse, Reason: reasonSuspended}
	podFailed   = metav1.Condition{Type: conditionReady, Status: metav1.ConditionFalse, Reason: reasonPodFailed, Message: "Pod failed"}
	finished    = metav1.Condition{Type: conditionFinished, Status: metav1.ConditionTrue, Reason: reasonPodFailed, Message: "Pod failed"}
)

func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func overtakenBy(t *testing.T, err error, state providers.State, want string) {
	t.Helper()
	var inactive *providers.NotActiveError
	if !errors.As(err, &inactive) || inactive.State != state || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
}

// Two servers may be asked for opposite things at once. Neither waits for what
// the other has made impossible.
func TestSuspendAndResumeAtOnce(t *testing.T) {
	t.Run("resumed while it is suspended", func(t *testing.T) {
		c := newCluster(t)
		c.sandbox("sg-d1", modeRunning, isReady)
		c.pod("sg-d1", "pod", nil)
		c.onceMode("sg-d1", modeSuspended, func() { c.set("sg-d1", modeRunning) })
		_, err := c.p.Suspend(soon(t), "sg-d1")
		overtakenBy(t, err, providers.StateCreating, `sandbox "d1" was resumed meanwhile, by another call`)
	})
	t.Run("suspended while it is resumed", func(t *testing.T) {
		c := newCluster(t)
		c.sandbox("sg-d1", modeSuspended, isSuspended)
		c.onceMode("sg-d1", modeRunning, func() { c.set("sg-d1", modeSuspended) })
		_, _, err := c.p.Resume(soon(t), "sg-d1")
		overtakenBy(t, err, providers.StateSuspended, `sandbox "d1" was suspended meanwhile, by another call`)
	})
	t.Run("the old pod goes first", func(t *testing.T) {
		c := newCluster(t)
		c.sandbox("sg-d1", modeSuspended, isSuspended)
		now, grace := metav1.Now(), podGrace
		var ending sync.WaitGroup
		defer ending.Wait()
		c.pod("sg-d1", "old", func(p *corev1.Pod) { p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &now, &grace })
		c.core.PrependWatchReactor("pods", func(clienttesting.Action) (bool, watch.Interface, error) {
			// It is waited for: now it may go.
			ending.Go(func() { _ = c.core.CoreV1().Pods(testNamespace).Delete(t.Context(), "sg-d1", metav1.DeleteOptions{}) })
			return false, nil, nil
		})
		c.onceMode("sg-d1", modeRunning, func() {
			if pods, err := c.core.CoreV1().Pods(testNamespace).List(c.t.Context(), metav1.ListOptions{}); err != nil || len(pods.Items) > 0 {
				c.t.Errorf("it was resumed with %v, %v", pods.Items, err)
			}
			c.set("sg-d1", modeSuspended)
		})
		_, _, err := c.p.Resume(soon(t), "sg-d1")
		overtakenBy(t, err, providers.StateSuspended, `sandbox "d1" was suspended meanwhile, by another call`)
	})
}

// The controller makes another pod for one that somebody deletes.
func TestAwaitFollowsThePodThatComes(t *testing.T) {
	c := newCluster(t)
	c.sandbox("sg-d1", modeRunning, podFailed)
	c.say("sg-d1", podFailed, finished)
	now := metav1.Now()
	c.pod("sg-d1", "old", func(p *corev1.Pod) {
		p.DeletionTimestamp, p.Status.Phase = &now, corev1.PodFailed
		p.Status.ContainerStatuses[0].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137}}
	})
	looked := make(chan struct{})
	var once sync.Once
	c.core.PrependWatchReactor("pods", func(clienttesting.Action) (bool, watch.Interface, error) {
		once.Do(func() { close(looked) })
		return false, nil, nil
	})
	var controller sync.WaitGroup
	defer controller.Wait()
	controller.Go(func() {
		select {
		case <-looked:
		case <-time.After(10 * time.Second):
			t.Error("the old pod was not followed")
			return
		}
		if err := c.core.CoreV1().Pods(testNamespace).Delete(t.Context(), "sg-d1", metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
		c.pod("sg-d1", "new", nil)
		c.say("sg-d1", isReady)
	})
	s, err := c.p.find(t.Context(), "sg-d1")
	if err != nil {
		t.Fatal(err)
	}
	_, at, err := c.p.await(soon(t), s, &speculativeDial{})
	if err != nil || at.pod.UID != "new" {
		t.Errorf("%+v, %v", at, err)
	}
}

func TestWhatCannotBeResumedSaysWhy(t *testing.T) {
	c := newCluster(t)
	c.sandbox("sg-d1", modeRunning, metav1.Condition{Type: conditionReady, Status: metav1.ConditionFalse, Reason: reasonExpired, Message: "its time is over"})
	_, _, err := c.p.Resume(soon(t), "sg-d1")
	if want := `resume sandbox "d1": it is failed: its time is over: not active`; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	err = notNow("resume", providers.Info{Spec: providers.Spec{ID: "d1"}, State: providers.StateDeleting})
	if want := `resume sandbox "d1": it is deleting: not active`; err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}

func TestPoolThatIsNotThere(t *testing.T) {
	c := newCluster(t)
	_, err := c.p.poolFor(t.Context(), providers.Spec{Template: "plain"}, options{Pool: "nowhere"})
	if !errors.Is(err, providers.ErrStartFailed) || !strings.HasPrefix(err.Error(), `template "plain": there is no SandboxWarmPool nowhere in namespace ns`) {
		t.Errorf("%v", err)
	}
}
