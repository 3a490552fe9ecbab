package agentsandbox

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	clienttesting "k8s.io/client-go/testing"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/kube"
	"github.com/sandgate/sandgate/streaming/sealed"
)

// claiming is a claim that has just been made on a pool, and the agents that are
// in the pool's pods.
type claiming struct {
	*cluster
	made observed
	// watched is closed when somebody follows the claim.
	watched chan struct{}
}

func newClaiming(t *testing.T) *claiming {
	t.Helper()
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, before) })
	c := &claiming{cluster: newCluster(t), watched: make(chan struct{})}
	c.p.config.Transport = TransportPodIP
	c.p.agents = kube.NewAgents(nil, TransportPodIP, c.p.Log)
	t.Cleanup(c.p.agents.Close)
	r := newRecord(providers.Spec{ID: "d1", Template: "plain", TemplateOptions: []byte(`{"pool": "p"}`)})
	text, err := r.encode()
	if err != nil {
		t.Fatal(err)
	}
	made, err := c.p.claims.create(t.Context(), &claim{ObjectMeta: metav1.ObjectMeta{
		Name: "sg-d1", Namespace: testNamespace, UID: "claim", ResourceVersion: "1",
		Labels: recordLabels(kindSandbox, r.Spec), Annotations: map[string]string{annotationRecord: text},
	}})
	if err != nil {
		t.Fatal(err)
	}
	c.made = ofClaim(made)
	watched := sync.OnceFunc(func() { close(c.watched) })
	c.dyn.PrependWatchReactor("sandboxclaims", func(a clienttesting.Action) (bool, watch.Interface, error) {
		w, err := c.dyn.Tracker().Watch(a.GetResource(), testNamespace)
		watched() // on a busy machine it is followed again
		return true, w, err
	})
	return c
}

// agent makes a pool's pod with an agent that listens, and returns what connects
// to it.
func (c *claiming) agent(name string, change func(*agentAnnotation)) <-chan net.Conn {
	c.t.Helper()
	secret := sealed.NewSecret()
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		c.t.Fatal(err)
	}
	listener, err := sealed.NewListener(raw, secret)
	if err != nil {
		c.t.Fatal(err)
	}
	conns, done := make(chan net.Conn, 4), make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			conns <- conn
		}
	}()
	c.t.Cleanup(func() {
		_ = listener.Close()
		<-done
		for len(conns) > 0 {
			_ = (<-conns).Close()
		}
	})
	n := agentAnnotation{Container: "containerd://" + name, Injected: kube.Injected{Port: int32(raw.Addr().(*net.TCPAddr).Port)}}
	if change != nil {
		change(&n)
	}
	text, err := json.Marshal(n)
	if err != nil {
		c.t.Fatal(err)
	}
	c.pod(name, name, func(p *corev1.Pod) {
		p.Annotations = map[string]string{annotationAgent: string(text)}
		p.Status.PodIPs = []corev1.PodIP{{IP: "127.0.0.1"}}
	})
	if _, err := c.core.CoreV1().Secrets(testNamespace).Create(c.t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: secretName(types.UID(name)), Namespace: testNamespace},
		Data:       map[string][]byte{kube.SecretKey: []byte(secret.Text())},
	}, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
	return conns
}

// choose says which of the pool's Sandboxes the claim is about to be given.
func (c *claiming) choose(name string) {
	c.change(map[string]any{"metadata": map[string]any{"annotations": map[string]any{chosenAnnotation: name}}})
}

// give makes it the claim's.
func (c *claiming) give(name string) {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&isReady)
	if err != nil {
		c.t.Error(err)
	}
	c.change(map[string]any{"status": map[string]any{"sandbox": map[string]any{"name": name}, "conditions": []any{fields}}})
}

func (c *claiming) change(fields map[string]any) {
	if _, err := c.p.claims.patch(c.t.Context(), "sg-d1", fields); err != nil {
		c.t.Error(err)
	}
}

type creation struct {
	info providers.Info
	conn net.Conn
	err  error
}

// begin is the rest of a creation, until the claim is followed.
func (c *claiming) begin(ctx context.Context) <-chan creation {
	end := make(chan creation, 1)
	go func() {
		info, conn, err := c.p.finish(ctx, c.made)
		end <- creation{info, conn, err}
	}()
	within(c.t, c.watched)
	return end
}

func within[T any](t *testing.T, from <-chan T) (got T) {
	t.Helper()
	select {
	case got = <-from:
	case <-time.After(30 * time.Second):
		t.Fatal("it did not come")
	}
	return got
}

// reads counts the questions to the cluster.
func (c *claiming) reads() int {
	n := 0
	for _, a := range slices.Concat(c.core.Actions(), c.dyn.Actions()) {
		if v := a.GetVerb(); v == "get" || v == "list" {
			n++
		}
	}
	return n
}

// After the controller's last update, a creation sends no request to the cluster
// and returns the connection that it has opened before.
func TestConnectionIsOpenBeforeTheClaimIsReady(t *testing.T) {
	// On a busy machine the connection is older than maxDialAge before the claim is
	// ready. Such a try proves nothing.
	for range 20 {
		if connectionIsOpenInTime(t) {
			return
		}
	}
	t.Fatal("this machine is too slow to tell")
}

// connectionIsOpenInTime reports whether the creation was fast enough to count.
func connectionIsOpenInTime(t *testing.T) (inTime bool) {
	t.Helper()
	t.Run("a creation", func(t *testing.T) {
		c := newClaiming(t)
		agent := c.agent("pool-1", nil)
		end := c.begin(soon(t))
		began := time.Now()
		c.choose("pool-1")
		within(t, agent)
		select {
		case e := <-end:
			t.Fatalf("it ended before the claim was ready: %+v", e)
		case <-time.After(20 * time.Millisecond):
		}
		before := c.reads()
		c.give("pool-1")
		e := within(t, end)
		if want := incarnation("pool-1", "containerd://pool-1", 0); e.err != nil || e.info.Incarnation != want || !e.info.FromPool || e.info.State != providers.StateActive {
			t.Fatalf("%+v", e)
		}
		defer e.conn.Close()
		if inTime = time.Since(began) < maxDialAge; !inTime {
			return
		}
		if after := c.reads(); after != before {
			t.Errorf("%d questions after the claim was ready", after-before)
		}
		if len(agent) > 0 {
			t.Error("it was connected to twice")
		}
	})
	return inTime || t.Failed()
}

// What counts is what the claim has in the end.
func TestAnotherThanTheChosenOne(t *testing.T) {
	c := newClaiming(t)
	chosen, given := c.agent("pool-1", nil), c.agent("pool-2", nil)
	end := c.begin(soon(t))
	c.choose("pool-1")
	conn := within(t, chosen)
	c.give("pool-2")
	within(t, given)
	if e := within(t, end); e.err != nil || e.info.Incarnation != incarnation("pool-2", "containerd://pool-2", 0) {
		t.Errorf("%+v", e)
	}
	_ = conn.SetReadDeadline(time.Now().Add(30 * time.Second))
	if n, err := conn.Read(make([]byte, 1)); n != 0 || errors.Is(err, os.ErrDeadlineExceeded) || err == nil {
		t.Errorf("the one that was not given: %d bytes, %v", n, err)
	}
}

// An agent for others is not touched before the claim has its pod.
func TestNoConnectionToAnAgentForOthers(t *testing.T) {
	for name, change := range map[string]func(*agentAnnotation){
		"another directory": func(n *agentAnnotation) { n.Workdir = "/other" },
		"a proxy":           func(n *agentAnnotation) { n.Egress = true },
		"another container": func(n *agentAnnotation) { n.Container = "containerd://before" },
		"ended":             func(n *agentAnnotation) { n.Stopped = true },
	} {
		t.Run(name, func(t *testing.T) {
			c := newClaiming(t)
			agent := c.agent("pool-1", change)
			early := &speculativeDial{}
			early.begin(t.Context(), c.p, c.made, "pool-1")
			if _, ok := early.reached("pool-1"); ok || len(agent) > 0 {
				t.Error("it was connected to")
			}
			early.drop()
		})
	}
}

// A creation that ends leaves no connection behind.
func TestAClaimThatGoesLeavesNoConnection(t *testing.T) {
	c := newClaiming(t)
	agent := c.agent("pool-1", nil)
	end := c.begin(soon(t))
	c.choose("pool-1")
	conn := within(t, agent)
	if err := c.p.claims.delete(t.Context(), "sg-d1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if e := within(t, end); !errors.Is(e.err, errGone) {
		t.Errorf("%+v", e)
	}
	_ = conn.SetReadDeadline(time.Now().Add(30 * time.Second))
	if _, err := io.ReadAll(conn); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("it is open: %v", err)
	}
}
