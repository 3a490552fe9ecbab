package faults

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	sandgate "github.com/sandgate/sandgate/clients/go"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// bound is how long a loss may take to be told.
const bound = 30 * time.Second

// loss is something that no command survives.
type loss struct {
	name     string
	template string
	fault    func(*testing.T, *harness, *sandgate.Sandbox, *core.Pod)
	// of says what each provider makes of it. One that is not there never meets it.
	of map[string]outcome
}

// outcome is what a caller is told.
type outcome struct {
	// exit is how the command ends where that is known for sure, with told in the
	// reason; else any error, or an end that does not claim that it came to its own.
	exit sandboxv1.ExitReason
	told string
	// replaced: another incarnation is there afterwards. Else the sandbox has
	// failed, with said in the reason.
	replaced bool
	said     string
}

var (
	ended    = outcome{said: "is gone"}
	replaced = outcome{replaced: true}
)

var losses = []loss{
	{"pod deleted at once", "", func(t *testing.T, r *harness, _ *sandgate.Sandbox, pod *core.Pod) {
		r.delete(t, pod, meta.DeleteOptions{GracePeriodSeconds: new(int64)})
	}, map[string]outcome{"kubernetes": ended, "agentsandbox": replaced}},
	{"pod deleted in order", "", func(t *testing.T, r *harness, _ *sandgate.Sandbox, pod *core.Pod) {
		r.delete(t, pod, meta.DeleteOptions{})
	}, map[string]outcome{"kubernetes": ended, "agentsandbox": replaced}},
	{"pod evicted", "", func(t *testing.T, r *harness, _ *sandgate.Sandbox, pod *core.Pod) {
		err := r.client.CoreV1().Pods(pod.Namespace).EvictV1(t.Context(), &policy.Eviction{ObjectMeta: meta.ObjectMeta{Name: pod.Name}})
		if err != nil {
			t.Error(err)
		}
	}, map[string]outcome{"kubernetes": ended, "agentsandbox": replaced}},
	{"pod ended by the kubelet", "once", func(t *testing.T, r *harness, _ *sandgate.Sandbox, pod *core.Pod) {
		patch := []byte(`{"spec": {"activeDeadlineSeconds": 1}}`)
		if _, err := r.client.CoreV1().Pods(pod.Namespace).Patch(t.Context(), pod.Name, types.MergePatchType, patch, meta.PatchOptions{}); err != nil {
			t.Error(err)
		}
	}, map[string]outcome{"kubernetes": {said: "DeadlineExceeded"}, "agentsandbox": {said: "DeadlineExceeded"}}},
	{"container killed on its node", "", func(t *testing.T, _ *harness, _ *sandgate.Sandbox, pod *core.Pod) {
		kill(t, first(t, pod.UID))
	}, map[string]outcome{"kubernetes": {said: "137"}, "agentsandbox": replaced}},
	{"agent killed", "", func(t *testing.T, _ *harness, _ *sandgate.Sandbox, pod *core.Pod) {
		kill(t, agent(t, pod.UID))
	}, map[string]outcome{"kubernetes": {said: "137"}, "agentsandbox": replaced}},
	{"agent told to end", "", func(t *testing.T, _ *harness, _ *sandgate.Sandbox, pod *core.Pod) {
		if err := syscall.Kill(agent(t, pod.UID).pid, syscall.SIGTERM); err != nil {
			t.Error(err)
		}
	}, map[string]outcome{"kubernetes": {said: "ended"}, "agentsandbox": replaced}},
	{"C5 pod out of memory", "once", exhaustMemory, map[string]outcome{
		"kubernetes":   {exit: sandboxv1.ExitReason_EXIT_REASON_OUT_OF_MEMORY, told: "OOMKilled", said: "OOMKilled"},
		"agentsandbox": {exit: sandboxv1.ExitReason_EXIT_REASON_OUT_OF_MEMORY, told: "OOMKilled", said: "OOMKilled"},
	}},
	{"C5 container out of memory, and started again", "", exhaustMemory, map[string]outcome{
		"agentsandbox": {exit: sandboxv1.ExitReason_EXIT_REASON_OUT_OF_MEMORY, told: "OOMKilled", replaced: true},
	}},
	{"C5 container out of memory, and started again on failure", "on-failure", exhaustMemory, map[string]outcome{
		"agentsandbox": {exit: sandboxv1.ExitReason_EXIT_REASON_OUT_OF_MEMORY, told: "OOMKilled", replaced: true},
	}},
}

// exhaustMemory has the kernel take process 1 first, and its container goes with
// it.
func exhaustMemory(t *testing.T, _ *harness, box *sandgate.Sandbox, pod *core.Pod) {
	one := first(t, pod.UID)
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", one.pid), []byte("1000"), 0); err != nil {
		t.Error(err)
	}
	_, _ = box.Execute(t.Context(), sandgate.ExecuteRequest{Shell: "echo 0 >/proc/self/oom_score_adj; exec tail /dev/zero", Detach: true})
}

func (r *harness) delete(t *testing.T, pod *core.Pod, opts meta.DeleteOptions) {
	t.Helper()
	if err := r.client.CoreV1().Pods(pod.Namespace).Delete(t.Context(), pod.Name, opts); err != nil {
		t.Error(err)
	}
}

func kill(t *testing.T, p process) {
	t.Helper()
	if err := syscall.Kill(p.pid, syscall.SIGKILL); err != nil {
		t.Errorf("kill %+v: %v", p, err)
	}
}

// TestLossIsTold takes away what cannot be resumed, with each provider.
func TestLossIsTold(t *testing.T) {
	transports := []string{"exec"}
	if os.Getenv("SANDGATE_KUBERNETES") == "full" {
		transports = append(transports, "pod-ip")
	}
	r := newHarness(t, transports...)
	t.Run("C7", func(t *testing.T) {
		for _, l := range losses {
			for _, s := range r.sides {
				if _, meets := l.of[s.provider]; !meets {
					continue
				}
				t.Run(l.name+", "+s.String(), func(t *testing.T) {
					t.Parallel()
					s.lose(t, l)
				})
			}
		}
	})
	t.Run("C23 nothing is left", r.nothingLeft)
}

func (s *side) lose(t *testing.T, l loss) {
	box := s.create(t, l.template)
	want := l.of[s.provider]
	run := s.start(t, box, int(5*time.Minute/pace))
	await(t, run.begun, run.done)
	began := time.Now()
	l.fault(t, s.harness, box, s.pod(t, box))
	select {
	case <-run.done:
	case <-time.After(2 * bound):
		t.Fatalf("nothing was told for %v", time.Since(began))
	}
	took := time.Since(began).Round(time.Millisecond)
	t.Logf("told after %v: %v, %v", took, run.exit, run.err)
	if took > bound {
		t.Errorf("it took %v", took)
	}
	switch reason := run.exit.GetReason(); {
	case want.exit != 0 && (reason != want.exit || !strings.Contains(run.exit.GetMessage(), want.told)):
		t.Errorf("it ended %v, %v, want %v", run.exit, run.err, want.exit)
	case run.err == nil && (reason == sandboxv1.ExitReason_EXIT_REASON_EXITED || reason == sandboxv1.ExitReason_EXIT_REASON_UNSPECIFIED):
		t.Errorf("a false end: %v", run.exit)
	}
	s.afterwards(t, box, want)
	if took := time.Since(began); took > 2*bound {
		t.Errorf("what became of the sandbox was known after %v", took)
	}
}

// afterwards checks what the sandbox is said to be, and that nobody is given an
// empty one in its place without a word.
func (s *side) afterwards(t *testing.T, box *sandgate.Sandbox, want outcome) {
	t.Helper()
	if want.replaced {
		var err error
		eventually(t, bound, "a call that expects the former incarnation is refused", func() bool {
			_, err = box.Execute(t.Context(), sandgate.ExecuteRequest{Shell: "true"})
			return errors.Is(err, sandgate.ErrSandboxReplaced)
		})
		got, err := s.client.Sandbox(box.ID()).Execute(t.Context(), sandgate.ExecuteRequest{Shell: "echo here"})
		if err != nil || string(got.Stdout) != "here\n" {
			t.Errorf("in the new one: %+v, %v", got, err)
		}
		return
	}
	var info *sandgate.Info
	var err error
	defer func() { t.Logf("the sandbox: %v, %v", info.GetStateMessage(), err) }()
	eventually(t, bound, "the sandbox says that it failed, and why", func() bool {
		info, err = box.Info(t.Context())
		return err == nil && info.GetState() == sandboxv1.SandboxState_SANDBOX_STATE_FAILED && strings.Contains(info.GetStateMessage(), want.said)
	})
	if _, err := box.Execute(t.Context(), sandgate.ExecuteRequest{Shell: "true"}); !errors.Is(err, sandgate.ErrSandboxNotActive) {
		t.Errorf("a command in it: %v", err)
	}
}

// pod is the one of a sandbox.
func (s *side) pod(t *testing.T, box *sandgate.Sandbox) *core.Pod {
	t.Helper()
	info, err := box.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	list, err := s.harness.client.CoreV1().Pods(s.harness.namespace).List(t.Context(), meta.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range list.Items {
		if pod := &list.Items[i]; strings.HasPrefix(pod.Name, info.GetSubstrateName()) {
			return pod
		}
	}
	t.Fatalf("%q has no pod among %d", info.GetSubstrateName(), len(list.Items))
	return nil
}
