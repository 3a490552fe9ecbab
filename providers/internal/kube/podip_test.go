package kube

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/streaming/sealed"
)

func podAt(ips ...string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pod"}}
	for _, ip := range ips {
		pod.Status.PodIPs = append(pod.Status.PodIPs, corev1.PodIP{IP: ip})
	}
	return pod
}

// listen is an end of a pod's address, and its port.
func listen(t *testing.T, address string) (net.Listener, int32) {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	return l, int32(l.Addr().(*net.TCPAddr).Port)
}

// agentAt plays an agent that greets peers with the secret.
func agentAt(t *testing.T, address string, s sealed.Secret) int32 {
	t.Helper()
	inner, port := listen(t, address)
	l, err := sealed.NewListener(inner, s)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, "hello")
			_ = c.Close()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	return port
}

func TestDialPod(t *testing.T) {
	s := sealed.NewSecret()
	port := agentAt(t, "127.0.0.1:0", s)
	t.Run("by the first address that answers", func(t *testing.T) {
		// One is malformed, and nothing listens at the next.
		conn, err := new(PodConns).Dial(t.Context(), podAt("nonsense", "127.0.0.2", "127.0.0.1"), port, s)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		if got, err := io.ReadAll(conn); err != nil || string(got) != "hello" {
			t.Errorf("%q, %v", got, err)
		}
	})
	for _, c := range []struct {
		name   string
		pod    *corev1.Pod
		secret sealed.Secret
		says   string
	}{
		{"another pod has the address by now", podAt("127.0.0.1"), sealed.NewSecret(), "may belong to another pod"},
		{"nothing listens", podAt("127.0.0.3"), s, "nothing listens at 127.0.0.3"},
		{"no address", podAt(), s, "no address yet"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := new(PodConns).Dial(t.Context(), c.pod, port, c.secret)
			if !errors.Is(err, providers.ErrUnavailable) || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), "ns/pod") {
				t.Errorf("%v", err)
			}
			if strings.Contains(err.Error(), c.secret.Text()) || OutOfReach(err) {
				t.Errorf("%v", err)
			}
		})
	}
	t.Run("no answer", func(t *testing.T) {
		// The kernel accepts the connection; no data follows.
		l, port := listen(t, "127.0.0.1:0")
		defer func() { _ = l.Close() }()
		began := time.Now()
		_, err := new(PodConns).Dial(t.Context(), podAt("127.0.0.1"), port, s)
		if !OutOfReach(err) || !errors.Is(err, providers.ErrUnavailable) || !strings.Contains(err.Error(), "network policy") {
			t.Errorf("%v", err)
		}
		if errors.Is(err, errNoRoute) {
			t.Errorf("a slow greeting is taken for one of the network: %v", err)
		}
		if took := time.Since(began); took > 4*podGreetTime {
			t.Errorf("it took %v", took)
		}
		why := errors.New("enough")
		ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, why)
		defer cancel()
		if _, err := new(PodConns).Dial(ctx, podAt("127.0.0.1"), port, s); !errors.Is(err, why) {
			t.Errorf("cancelled: %v", err)
		}
	})
}

// TestConnectionsToAGonePodEnd: connections to a pod that is gone end, and with Close all.
func TestConnectionsToAGonePodEnd(t *testing.T) {
	s := sealed.NewSecret()
	inner, port := listen(t, "127.0.0.1:0")
	l, err := sealed.NewListener(inner, s)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			defer func() { _ = c.Close() }() // it stays silent until the end
		}
	}()
	var conns PodConns
	dial := func(uid types.UID) net.Conn {
		t.Helper()
		pod := podAt("127.0.0.1")
		pod.UID = uid
		c, err := conns.Dial(t.Context(), pod, port, s)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	lives := func(c net.Conn) bool {
		if err := c.SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil && !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
		_, err := c.Read(make([]byte, 1))
		return errors.Is(err, os.ErrDeadlineExceeded)
	}
	one, two, other := dial("a"), dial("a"), dial("b")
	_ = one.Close()
	conns.Drop("a")
	conns.Drop("c")
	if lives(one) || lives(two) || !lives(other) {
		t.Errorf("closed lives: %v, dropped lives: %v, another's lives: %v", lives(one), lives(two), lives(other))
	}
	if _, err := two.Write([]byte("x")); err == nil {
		t.Error("a write to a deleted pod succeeded")
	}
	if err := two.Close(); err != nil && !errors.Is(err, syscall.EPIPE) {
		t.Errorf("close after the end: %v", err)
	}
	conns.Close()
	if lives(other) {
		t.Error("it lives after Close")
	}
	if _, err := conns.Dial(t.Context(), podAt("127.0.0.1"), port, s); !errors.Is(err, providers.ErrUnavailable) {
		t.Errorf("after Close: %v", err)
	}
	if len(conns.open) > 0 {
		t.Errorf("%d are kept", len(conns.open))
	}
}

// TestDialWaitsForAnAgentThatIsAboutToListen: an agent that is about to listen is waited for.
func TestDialWaitsForAnAgentThatIsAboutToListen(t *testing.T) {
	s := sealed.NewSecret()
	l, port := listen(t, "127.0.0.1:0")
	_ = l.Close()
	timer := time.AfterFunc(200*time.Millisecond, func() { agentAt(t, net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port))), s) })
	defer timer.Stop()
	conn, err := new(PodConns).DialNew(t.Context(), podAt("127.0.0.1"), port, s)
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
	began := time.Now()
	if _, err := new(PodConns).DialNew(t.Context(), podAt("127.0.0.1"), port, sealed.NewSecret()); err == nil || time.Since(began) > podListenWait {
		t.Errorf("the wrong one is waited for: %v", err)
	}
}

func TestCheckTransport(t *testing.T) {
	if got, port, err := CheckTransport("", 0); got != TransportAuto || port != DefaultAgentPort || err != nil {
		t.Errorf("%s %d %v", got, port, err)
	}
	for _, want := range []Transport{TransportAuto, TransportExec, TransportPodIP} {
		if got, port, err := CheckTransport(want, 8888); got != want || port != 8888 || err != nil {
			t.Errorf("%s %d %v", got, port, err)
		}
	}
	for _, c := range []struct {
		transport Transport
		port      int32
	}{{"router", 0}, {"port-forward", 0}, {"POD-IP", 0}, {TransportPodIP, 80}, {TransportPodIP, 65536}, {TransportExec, -1}} {
		if _, _, err := CheckTransport(c.transport, c.port); !errors.Is(err, providers.ErrInvalid) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// TestInjectedAgentTakesConnectionsWithItsSecret: the agent that is put in takes connections from peers that know
// its secret, whichever installer wrote it.
func TestInjectedAgentTakesConnectionsWithItsSecret(t *testing.T) {
	for _, without := range [][]string{nil, {"sh"}, {"sh", "python3"}} {
		in, box := newInjector(t)
		box.without = without
		l, port := listen(t, ":0")
		_ = l.Close()
		want := Injection{Incarnation: "abc-1", Port: port, Secret: sealed.NewSecret()}
		at, err := in.Inject(t.Context(), box.run, want)
		if err != nil || at.Port != port {
			t.Fatalf("without %v: %+v, %v", without, at, err)
		}
		answers(t, at, "abc-1")
		conn, err := new(PodConns).Dial(t.Context(), podAt("127.0.0.1"), port, want.Secret)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.Close()
		again, err := in.Inject(t.Context(), box.run, want)
		if err != nil || again != at {
			t.Errorf("again: %+v after %+v, %v", again, at, err)
		}
		// An agent that was started without a port stays without, and is reported so.
		if at, err = in.Start(t.Context(), box.run, at, Injection{Incarnation: "abc-2"}); err != nil || at.Port != 0 {
			t.Errorf("%+v, %v", at, err)
		}
		want.Incarnation = "abc-2"
		if at, err = in.Start(t.Context(), box.run, at, want); err != nil || at.Port != 0 {
			t.Errorf("%+v, %v", at, err)
		}
	}
}
