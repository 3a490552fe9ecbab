package agentsandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/kube"
	"github.com/sandgate/sandgate/providers/internal/pool"
	shared "github.com/sandgate/sandgate/providers/internal/record"
)

func TestDecodeOptions(t *testing.T) {
	for _, c := range []struct {
		name, template, request string
		change                  func(*providers.Spec)
		want                    options
		err                     error
	}{
		{name: "pool", template: `{"pool": "p"}`, want: options{Pool: "p"}},
		{name: "template", template: `{"sandbox_template": "t"}`, want: options{SandboxTemplate: "t"}},
		{name: "neither", template: `{}`, err: providers.ErrInvalid},
		{name: "both", template: `{"pool": "p", "sandbox_template": "t"}`, err: providers.ErrInvalid},
		{name: "the request's pool in place of the template's", template: `{"sandbox_template": "t"}`, request: `{"pool": "p"}`, want: options{Pool: "p"}},
		{name: "unknown in the template", template: `{"pool": "p", "x": 1}`, err: providers.ErrInvalid},
		{name: "unknown in the request", template: `{"pool": "p"}`, request: `{"x": 1}`, err: providers.ErrInvalid},
		{name: "the operator's list in the request", template: `{"pool": "p"}`, request: `{"existing_claims": ["*"]}`, err: providers.ErrInvalid},
		{name: "wrap what is listed", template: `{"existing_claims": ["a-*"]}`, request: `{"existing_claim": "a-1"}`, want: options{ExistingClaim: "a-1"}},
		{name: "wrap what the template says", template: `{"existing_sandbox": "b"}`, want: options{ExistingSandbox: "b"}},
		{name: "wrap what is not listed", template: `{"pool": "p", "existing_sandboxes": ["a-*"]}`, request: `{"existing_claim": "a-1"}`, err: providers.ErrForbidden},
		{name: "wrap two", template: `{"existing_claim": "a", "existing_sandbox": "b"}`, err: providers.ErrInvalid},
		{name: "a volume without a size", template: `{"pool": "p", "volume_claim_templates": [{"name": "v"}]}`, err: providers.ErrInvalid},
		{name: "two values", template: `{"pool": "p"} {}`, err: providers.ErrInvalid},
		{name: "an image", template: `{"pool": "p"}`, change: func(s *providers.Spec) { s.Image = "x" }, err: providers.ErrUnsupported},
		{name: "a command", template: `{"pool": "p"}`, change: func(s *providers.Spec) { s.Command = []string{"x"} }, err: providers.ErrUnsupported},
		{name: "a relative directory", template: `{"pool": "p"}`, change: func(s *providers.Spec) { s.WorkingDirectory = "x" }, err: providers.ErrInvalid},
		{name: "a bad variable", template: `{"pool": "p"}`, change: func(s *providers.Spec) { s.Env = map[string]string{"A-B": ""} }, err: providers.ErrInvalid},
	} {
		t.Run(c.name, func(t *testing.T) {
			spec := providers.Spec{Template: "default", TemplateOptions: json.RawMessage(c.template), Options: json.RawMessage(c.request)}
			if c.change != nil {
				c.change(&spec)
			}
			got, err := decodeOptions(spec)
			if !errors.Is(err, c.err) {
				t.Fatalf("%v, want %v", err, c.err)
			}
			if diff := cmp.Diff(c.want, got); err == nil && diff != "" {
				t.Error(diff)
			}
		})
	}
}

// The cluster must never end a sandbox before the server would.
func TestLifecycleIsNeverEarly(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		base := time.Unix(1_700_000_000, rapid.Int64Range(0, 1e9-1).Draw(t, "nanoseconds"))
		r := record{Sandbox: shared.Sandbox{
			CreateTime: base, LastActivity: base.Add(time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "active"))),
			Spec: providers.Spec{
				TTL:     time.Duration(rapid.Int64Range(0, int64(48*time.Hour)).Draw(t, "ttl")),
				IdleTTL: time.Duration(rapid.Int64Range(0, int64(48*time.Hour)).Draw(t, "idle")),
			},
		}}
		grace := time.Duration(rapid.Int64Range(0, int64(2*time.Hour)).Draw(t, "grace"))
		at := r.lifecycle(grace, nil).ShutdownTime
		end := r.Info("").ExpireTime()
		if end.IsZero() != (at == nil) {
			t.Fatalf("it ends %v, the cluster says %v", end, at)
		}
		if at == nil {
			return
		}
		sent, err := json.Marshal(at)
		if err != nil {
			t.Fatal(err)
		}
		var kept metav1.Time
		if err := json.Unmarshal(sent, &kept); err != nil {
			t.Fatal(err)
		}
		if kept.Before(&metav1.Time{Time: end}) {
			t.Errorf("it ends %v, the cluster ends it %v", end, kept)
		}
		if latest := end.Add(grace + time.Second); kept.After(latest) {
			t.Errorf("it ends %v, the cluster ends it %v, more than %v later", end, kept, grace)
		}
	})
}

func TestRecordKeepsTheSpec(t *testing.T) {
	r := newRecord(providers.Spec{
		Tenant: "a", ID: "b", Hash: "c", Env: map[string]string{"TOKEN": "a secret"}, Access: []byte{0, 255},
		Labels: map[string]string{"x": "y"}, TTL: time.Hour, TemplateOptions: json.RawMessage(`{"pool":"p"}`),
	})
	text, err := r.encode()
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(text, "a secret") {
		t.Errorf("the record tells the secret: %s", text)
	}
	got, err := decodeRecord(text)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(r, got); diff != "" {
		t.Error(diff)
	}
}

func TestState(t *testing.T) {
	ready := func(status metav1.ConditionStatus, reason string) *metav1.Condition {
		return &metav1.Condition{Type: conditionReady, Status: status, Reason: reason, Message: "said " + reason}
	}
	pod := func(change func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{}
		p.Name = "x"
		p.Spec.Containers = []corev1.Container{{Name: "main"}}
		p.Status.Phase = corev1.PodRunning
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{
			Name: "main", ContainerID: "containerd://1", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
		}}
		if change != nil {
			change(p)
		}
		return p
	}
	killed := func(p *corev1.Pod) {
		p.Status.Phase = corev1.PodFailed
		p.Status.ContainerStatuses[0].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "OOMKilled"}}
	}
	now := metav1.Now()
	for _, c := range []struct {
		name     string
		observed observed
		pod      *corev1.Pod
		want     providers.State
		failure  providers.Failure
		message  string
	}{
		{"nothing is known yet", observed{}, nil, providers.StateCreating, 0, ""},
		{"not ready", observed{ready: ready("False", "DependenciesNotReady")}, nil, providers.StateCreating, 0, "said DependenciesNotReady"},
		{"ready", observed{ready: ready("True", "DependenciesReady")}, pod(nil), providers.StateActive, 0, ""},
		{"ready, and the pod is gone", observed{ready: ready("True", "DependenciesReady")}, nil, providers.StateCreating, 0, "being replaced"},
		{"ready, and the pod goes", observed{ready: ready("True", "DependenciesReady")}, pod(func(p *corev1.Pod) { p.DeletionTimestamp = &now }), providers.StateCreating, 0, "being replaced"},
		{"the pod ended because it goes", observed{ready: ready("False", reasonPodFailed), finished: ready("True", reasonPodFailed)}, pod(func(p *corev1.Pod) {
			killed(p)
			p.DeletionTimestamp = &now
		}), providers.StateCreating, 0, "being replaced"},
		{"the pod that ended is gone", observed{ready: ready("False", reasonPodFailed), finished: ready("True", reasonPodFailed)}, nil, providers.StateCreating, 0, "being replaced"},
		{"another pod follows the one that ended", observed{ready: ready("False", reasonPodFailed), finished: ready("True", reasonPodFailed)}, pod(func(p *corev1.Pod) {
			p.Status = corev1.PodStatus{Phase: corev1.PodPending}
		}), providers.StateCreating, 0, "being replaced"},
		{"the pod ended by itself", observed{ready: ready("False", reasonPodFailed), finished: ready("True", reasonPodFailed)}, pod(killed), providers.StateFailed, providers.FailureOutOfMemory, "OOMKilled"},
		{"its container is started again", observed{ready: ready("True", "DependenciesReady")}, pod(func(p *corev1.Pod) {
			p.Status.ContainerStatuses[0].State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}
			p.Status.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{Reason: "OOMKilled"}
		}), providers.StateCreating, 0, "CrashLoopBackOff, after OOMKilled"},
		{"suspended", observed{ready: ready("False", reasonSuspended)}, nil, providers.StateSuspended, 0, ""},
		{"expired", observed{ready: ready("False", reasonExpired)}, nil, providers.StateFailed, 0, "said SandboxExpired"},
		{"env refused", observed{ready: ready("False", reasonEnv)}, nil, providers.StateFailed, 0, "said EnvVars"},
		{"out of memory", observed{ready: ready("False", reasonPodFailed)}, pod(killed), providers.StateFailed, providers.FailureOutOfMemory, "OOMKilled"},
		{"deleting wins", observed{deleting: true, ready: ready("True", "DependenciesReady")}, pod(nil), providers.StateDeleting, 0, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			state, message, failure := c.observed.state(c.pod)
			if state != c.want || failure != c.failure || !strings.Contains(message, c.message) {
				t.Errorf("%v, %q, %v", state, message, failure)
			}
		})
	}
}

func TestIncarnation(t *testing.T) {
	s := observed{seen: "before"}
	pod := &corev1.Pod{}
	pod.UID = "pod-1"
	pod.Spec.Containers = []corev1.Container{{Name: "main"}}
	if got := s.incarnation(pod); got != "before" {
		t.Errorf("without a container it is %q", got)
	}
	seen := map[string]string{}
	is := func(what string) {
		t.Helper()
		got := s.incarnation(pod)
		if again := s.incarnation(pod); again != got {
			t.Errorf("%s: %q, then %q", what, got, again)
		}
		if other, ok := seen[got]; ok {
			t.Errorf("%s has the incarnation of %s", what, other)
		}
		seen[got] = what
	}
	write := func(n agentAnnotation) {
		text, err := json.Marshal(n)
		if err != nil {
			t.Fatal(err)
		}
		pod.Annotations = map[string]string{annotationAgent: string(text)}
	}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", ContainerID: "containerd://1"}}
	is("the first container")
	write(made("containerd://1", 1, false))
	is("its second agent")
	write(made("containerd://1", 1, true))
	is("the agent after one that was stopped")
	pod.Status.ContainerStatuses[0].ContainerID = "containerd://2"
	is("the second container, with the note of the first")
	pod.UID = "pod-2"
	is("another pod of the name")
}

// A container that the kubelet has started again tells how the one before it
// ended, and so how all of its agents did.
func TestEndingIsThatOfTheContainerBefore(t *testing.T) {
	const pod, first, second, third = "pod-1", "containerd://1", "containerd://2", "containerd://3"
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	waiting := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}
	ended := func(id, reason string, code int32) corev1.ContainerState {
		return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ContainerID: id, Reason: reason, ExitCode: code}}
	}
	oom := providers.Ending{Known: true, Failure: providers.FailureOutOfMemory, Message: "container main ended with code 137, OOMKilled"}
	for name, c := range map[string]struct {
		now, last  corev1.ContainerState
		id         string
		annotation agentAnnotation
		of         string
		want       providers.Ending
	}{
		"the kubelet has not noticed":             {now: running, id: first, of: incarnation(pod, first, 0), want: providers.Ending{Pending: true}},
		"nor that another runs for it":            {now: running, id: first, annotation: made(first, 1, false), of: incarnation(pod, first, 0), want: providers.Ending{Pending: true}},
		"C5 killed":                               {now: ended(first, "OOMKilled", 137), id: first, of: incarnation(pod, first, 0), want: oom},
		"C5 started again":                        {now: running, last: ended(first, "OOMKilled", 137), id: second, of: incarnation(pod, first, 0), want: oom},
		"C5 started again, with an agent":         {now: running, last: ended(first, "OOMKilled", 137), id: second, annotation: made(second, 3, false), of: incarnation(pod, first, 2), want: oom},
		"C5 to be started again later":            {now: waiting, last: ended(first, "OOMKilled", 137), id: first, of: incarnation(pod, first, 0), want: oom},
		"a command was killed, the container not": {now: running, last: ended(first, "OOMKilled", 0), id: second, of: incarnation(pod, first, 0), want: providers.Ending{Known: true, Message: "container main ended with code 0, OOMKilled"}},
		"ended by itself":                         {now: running, last: ended(first, "Error", 3), id: second, of: incarnation(pod, first, 0), want: providers.Ending{Known: true, Message: "container main ended with code 3"}},
		"one before that":                         {now: running, last: ended(second, "OOMKilled", 137), id: third, of: incarnation(pod, first, 0)},
		"one of another pod":                      {now: running, last: ended(first, "OOMKilled", 137), id: second, of: incarnation("pod-0", first, 0)},
		"a note that somebody else wrote":         {now: running, id: first, annotation: made(first, math.MaxInt, false), of: "x"},
	} {
		t.Run(name, func(t *testing.T) {
			text, err := json.Marshal(c.annotation)
			if err != nil {
				t.Fatal(err)
			}
			p := &corev1.Pod{}
			p.UID, p.Annotations = pod, map[string]string{annotationAgent: string(text)}
			p.Spec.Containers = []corev1.Container{{Name: "main"}}
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", ContainerID: c.id, State: c.now, LastTerminationState: c.last}}
			if got := (observed{}).ending(p, c.of); got != c.want {
				t.Errorf("%+v, want %+v", got, c.want)
			}
		})
	}
	if got := (observed{}).ending(nil, "x"); got != (providers.Ending{}) {
		t.Errorf("without a pod: %+v", got)
	}
}

// What an older view of the pod had put in may run there already, and an agent
// gives way to later ones only.
func TestAgentYieldsToLaterGenerationsOnly(t *testing.T) {
	for what, c := range map[string]struct {
		annotation agentAnnotation
		want       int
	}{
		"no agent yet":                    {agentAnnotation{}, 0},
		"one that runs":                   {made("containerd://2", 3, false), 3},
		"one that was stopped":            {made("containerd://2", 3, true), 4},
		"that of a former container":      {made("containerd://1", 3, false), 4},
		"a former container's, and ended": {made("containerd://1", 0, true), 1},
	} {
		if got := c.annotation.generation("containerd://2"); got != c.want {
			t.Errorf("after %s comes %d, want %d", what, got, c.want)
		}
	}
}

func made(container string, generation int, stopped bool) agentAnnotation {
	return agentAnnotation{Container: container, Generation: generation, Stopped: stopped}
}

func TestFingerprint(t *testing.T) {
	spec := providers.Spec{Template: "a", TemplateOptions: json.RawMessage(`{"pool": "p"}`)}
	same := spec
	same.TemplateOptions, same.Env = json.RawMessage(`{"pool":"p"}`), map[string]string{}
	same.ID, same.Hash, same.TTL, same.Labels = "id", "hash", time.Hour, map[string]string{"a": "b"}
	if pool.Fingerprint(spec) != pool.Fingerprint(same) {
		t.Error("what does not matter changes the fingerprint")
	}
	for what, change := range map[string]func(*providers.Spec){
		"template":  func(s *providers.Spec) { s.Template = "b" },
		"env":       func(s *providers.Spec) { s.Env = map[string]string{"A": ""} },
		"resources": func(s *providers.Spec) { s.Resources.MemoryBytes = 1 },
		"directory": func(s *providers.Spec) { s.WorkingDirectory = "/" },
		"network":   func(s *providers.Spec) { s.Network = providers.NetworkFull },
		"options":   func(s *providers.Spec) { s.Options = json.RawMessage(`{}`) },
	} {
		other := spec
		change(&other)
		if pool.Fingerprint(spec) == pool.Fingerprint(other) {
			t.Errorf("the fingerprint says nothing of %s", what)
		}
	}
}

func TestPoolNamesAreNames(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.String().Draw(t, "template")
		for _, name := range []string{coldPool(text), keptPool(providers.Spec{Template: text})} {
			// The controller appends six characters.
			if len(name) > 57 || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" || strings.HasPrefix(name, "-") || strings.HasSuffix(name, "-") {
				t.Errorf("%q makes %q", text, name)
			}
		}
	})
}

func FuzzDecodeToken(f *testing.F) {
	for _, t := range []token{{}, {Continue: "c", After: "a"}} {
		text, err := t.encode()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Add("not a token!")
	f.Add(tokens.Encode("{"))
	f.Fuzz(func(t *testing.T, text string) {
		got, err := decodeToken(text)
		if err != nil {
			if !errors.Is(err, providers.ErrTokenInvalid) {
				t.Error(err)
			}
			return
		}
		again, err := got.encode()
		if err != nil {
			t.Fatal(err)
		}
		if back, err := decodeToken(again); err != nil || back != got {
			t.Error(fmt.Errorf("%+v became %+v: %w", got, back, err))
		}
	})
}

// A connect that was killed, or that did not reach the pod, proves nothing.
func TestKilledConnectDoesNotProveAnAgentGone(t *testing.T) {
	for _, c := range []struct {
		name string
		r    kube.Result
		err  error
		want bool
	}{
		{"it listens", kube.Result{}, nil, false},
		{"nobody listens", kube.Result{Code: 1}, nil, true},
		{"no such program, in the runtime's words", kube.Result{Code: 127}, nil, true},
		{"killed", kube.Result{Code: 137}, nil, false},
		{"told to end", kube.Result{Code: 143}, nil, false},
		{"the runtime of Go could not start", kube.Result{Code: 2}, nil, false},
		{"not reached", kube.Result{}, providers.ErrUnavailable, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := surelyGone(c.r, c.err); got != c.want {
				t.Errorf("%v, want %v", got, c.want)
			}
		})
	}
}
