package kube

import (
	"context"
	"io"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
)

const ready = "ready"

func waitingPod(name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "here", Name: name, UID: types.UID(name), Labels: map[string]string{"use": ready},
	}}
}

const hello = "hello"

// agentBehind is a connect that is held, to an agent that says hello. It tells
// when its input has ended.
func agentBehind(ended chan<- struct{}) program {
	return func(stdin io.Reader, stdout, _ io.Writer, _ <-chan struct{}) int {
		defer func() { ended <- struct{}{} }()
		_, _ = io.WriteString(stdout, "\n")
		if n, _ := stdin.Read(make([]byte, 1)); n == 0 {
			return 0
		}
		_, _ = io.WriteString(stdout, hello)
		_, _ = io.Copy(io.Discard, stdin)
		return 0
	}
}

// tended is a Holder that looks after these pods.
func tended(t *testing.T, run program, pods ...*corev1.Pod) (*Holder, *fake.Clientset, func()) {
	t.Helper()
	set := fake.NewClientset()
	for _, pod := range pods {
		if err := set.Tracker().Add(pod); err != nil {
			t.Fatal(err)
		}
	}
	_, e := newExecServer(t, run)
	h := NewHolder(e)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		h.Tend(ctx, Waiting{
			Name: "pool", Pods: set.CoreV1().Pods("here"),
			Selector: func(context.Context) (string, error) { return "use=" + ready, nil },
			Connect: func(pod *corev1.Pod) (Container, []string, bool) {
				return Container{Namespace: pod.Namespace, Pod: pod.Name}, []string{"connect"}, pod.Labels["use"] == ready
			},
		})
	}()
	end := func() {
		stop()
		<-done
		h.Close()
	}
	t.Cleanup(end)
	return h, set, end
}

// eventually asks until something is so.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	late := time.After(patience)
	for !ok() {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("%s: not within %v", what, patience)
		}
	}
}

func TestHolder(t *testing.T) {
	t.Run("a pod that waits is held, and its agent speaks when it is taken", func(t *testing.T) {
		ended := make(chan struct{}, 8)
		h, _, _ := tended(t, agentBehind(ended), waitingPod("a"))
		eventually(t, "a stream", func() bool { return len(h.Held("pool")) == 1 })
		conn := h.Take("a")
		if conn == nil {
			t.Fatal("nothing was held")
		}
		got := make([]byte, len(hello))
		if _, err := io.ReadFull(conn, got); err != nil || string(got) != hello {
			t.Errorf("%q, %v", got, err)
		}
		if again := h.Take("a"); again != nil {
			t.Error("it can be taken twice")
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		<-ended
	})
	t.Run("one that waits no more is let go, but not before its claimer may ask", func(t *testing.T) {
		ended := make(chan struct{}, 8)
		h, set, _ := tended(t, agentBehind(ended), waitingPod("a"), waitingPod("b"))
		eventually(t, "streams", func() bool { return len(h.Held("pool")) == 2 })
		for _, name := range []string{"a", "b"} {
			claimed := waitingPod(name)
			claimed.Labels["use"] = "claimed"
			if _, err := set.CoreV1().Pods("here").Update(t.Context(), claimed, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		eventually(t, "none that waits", func() bool { return len(h.Held("pool")) == 0 })
		conn := h.Take("a")
		if conn == nil {
			t.Fatal("its claimer came too late")
		}
		_ = conn.Close()
		<-ended
		<-ended // b, which nobody asked for
	})
	t.Run("an agent that cannot be held is reached by others", func(t *testing.T) {
		tried := make(chan struct{}, 8)
		h, _, _ := tended(t, func(io.Reader, io.Writer, io.Writer, <-chan struct{}) int {
			tried <- struct{}{}
			return 2
		}, waitingPod("a"))
		<-tried
		if conn := h.Take("a"); conn != nil {
			t.Error("there is a connection")
		}
		select {
		case <-tried:
			t.Error("it was asked again at once")
		default:
		}
	})
	t.Run("an agent that has gone since is not waited for", func(t *testing.T) {
		h, _, _ := tended(t, func(stdin io.Reader, stdout, _ io.Writer, _ <-chan struct{}) int {
			_, _ = io.WriteString(stdout, "\n")
			_, _ = stdin.Read(make([]byte, 1))
			return 1
		}, waitingPod("a"))
		eventually(t, "a stream", func() bool { return len(h.Held("pool")) == 1 })
		if conn := h.Take("a"); conn != nil {
			t.Error("there is a connection")
		}
	})
	t.Run("closing ends what is held", func(t *testing.T) {
		ended := make(chan struct{}, 8)
		h, _, end := tended(t, agentBehind(ended), waitingPod("a"))
		eventually(t, "a stream", func() bool { return len(h.Held("pool")) == 1 })
		end()
		<-ended
		if conn := h.Take("a"); conn != nil {
			t.Error("there is a connection")
		}
	})
}
