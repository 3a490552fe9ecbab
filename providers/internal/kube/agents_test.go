package kube

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	k8stesting "k8s.io/client-go/testing"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/streaming/sealed"
)

func TestAgentsDial(t *testing.T) {
	var down atomic.Bool
	_, e := newExecServer(t, func(_ io.Reader, stdout, _ io.Writer, _ <-chan struct{}) int {
		if down.Load() {
			return 1
		}
		_, _ = io.WriteString(stdout, "hello")
		return 0
	})
	secret := sealed.NewSecret()
	port := agentAt(t, "127.0.0.1:0", secret)
	agent := func(pod *corev1.Pod, port int32) Agent {
		return Agent{
			Pod: pod, Port: port, Group: "none", Command: []string{"connect"},
			Secret: func(context.Context) (sealed.Secret, error) { return secret, nil },
		}
	}
	here, blocked := podAt("127.0.0.1"), blackHole(t)
	open := func(t *testing.T, transport Transport) *Agents {
		a := NewAgents(e, transport, slog.New(slog.DiscardHandler))
		a.conns.connectTime, a.conns.listenWait = 100*time.Millisecond, 100*time.Millisecond
		t.Cleanup(a.Close)
		return a
	}
	reached := func(t *testing.T, a *Agents, to Agent, want Transport) {
		t.Helper()
		conn, err := a.Dial(t.Context(), to)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		if got := TransportOf(conn); got != want {
			t.Errorf("by %s, not %s", got, want)
		}
		if got, err := io.ReadAll(conn); err != nil || string(got) != "hello" {
			t.Errorf("%q, %v", got, err)
		}
	}
	for _, transport := range []Transport{TransportAuto, TransportPodIP} {
		t.Run(string(transport), func(t *testing.T) {
			a := open(t, transport)
			reached(t, a, agent(here, port), TransportPodIP)
			reached(t, a, agent(here, 0), TransportExec)
		})
	}
	t.Run("exec", func(t *testing.T) { reached(t, open(t, TransportExec), agent(here, port), TransportExec) })
	t.Run("auto falls back for the pods of a group", func(t *testing.T) {
		a := open(t, TransportAuto)
		reached(t, a, agent(here, blocked), TransportExec)
		reached(t, a, agent(here, port), TransportExec)
		other := agent(here, port)
		other.Group = "full"
		reached(t, a, other, TransportPodIP)
		a.unreachable["none"] = time.Now()
		reached(t, a, agent(here, port), TransportPodIP)
	})
	t.Run("auto falls back for one pod where nothing listens", func(t *testing.T) {
		a := open(t, TransportAuto)
		l, closed := listen(t, "127.0.0.1:0")
		_ = l.Close()
		reached(t, a, agent(here, closed), TransportExec)
		reached(t, a, agent(here, port), TransportPodIP)
	})
	t.Run("auto falls back for no other pod if exec fails too", func(t *testing.T) {
		a := open(t, TransportAuto)
		l, closed := listen(t, "127.0.0.1:0")
		_ = l.Close()
		down.Store(true)
		defer down.Store(false)
		for _, port := range []int32{closed, blocked} {
			to := agent(here, port)
			to.Starting = true
			if conn, err := a.Dial(t.Context(), to); err == nil {
				t.Errorf("%v", conn)
			}
		}
		reached(t, a, agent(here, port), TransportPodIP)
	})
	t.Run("auto falls back for the pods of a group where an agent's port is rejected", func(t *testing.T) {
		a := open(t, TransportAuto)
		l, closed := listen(t, "127.0.0.1:0")
		_ = l.Close()
		to := agent(here, closed)
		to.Starting = true
		reached(t, a, to, TransportExec)
		reached(t, a, agent(here, port), TransportExec)
	})
	t.Run("auto warns", func(t *testing.T) {
		a := open(t, TransportAuto)
		var logged bytes.Buffer
		a.log = slog.New(slog.NewTextHandler(&logged, nil))
		warns := func(what string, to Agent, want int) {
			t.Helper()
			logged.Reset()
			reached(t, a, to, TransportExec)
			if n := strings.Count(logged.String(), "level=WARN"); n != want {
				t.Errorf("%s: %d warnings: %s", what, n, &logged)
			}
		}
		warns("a group", agent(here, blocked), 1)
		warns("the same", agent(here, blocked), 0)
		a.unreachable["none"] = time.Now()
		warns("the same, later", agent(here, blocked), 1)
		a.unreachable["none"] = time.Now()
		other := agent(here, port)
		other.Secret = func(context.Context) (sealed.Secret, error) { return sealed.NewSecret(), nil }
		warns("a peer that is not the agent", other, 1)
		warns("the same", other, 0)
		a.warned = time.Now().Add(-warnInterval)
		other.Secret = func(context.Context) (sealed.Secret, error) { return sealed.Secret{}, providers.ErrForbidden }
		warns("a secret that may not be read", other, 1)
		if got := a.Transport(port, "none"); got != TransportPodIP {
			t.Errorf("then the group is reached by %s", got)
		}
	})
	t.Run("pod-ip never falls back", func(t *testing.T) {
		if conn, err := open(t, TransportPodIP).Dial(t.Context(), agent(here, blocked)); !OutOfReach(err) || !errors.Is(err, providers.ErrUnavailable) {
			t.Errorf("%v, %v", conn, err)
		}
	})
}

// blackHole returns a port that does not answer, as behind a network policy: its
// queue of connections is full.
func blackHole(t *testing.T) int32 {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(fd) })
	if err := errors.Join(syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), syscall.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	at, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	port := at.(*syscall.SockaddrInet4).Port
	for {
		conn, err := net.DialTimeout("tcp", fmt.Sprint("127.0.0.1:", port), 200*time.Millisecond)
		if err != nil {
			return int32(port)
		}
		t.Cleanup(func() { _ = conn.Close() })
	}
}

func TestResolveTransport(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	log := slog.New(slog.DiscardHandler)
	for transport, want := range map[Transport]Transport{
		TransportAuto: TransportExec, TransportExec: TransportExec, TransportPodIP: TransportPodIP,
	} {
		if got, err := transport.Resolve(t.Context(), &rest.Config{Host: "https://192.0.2.1"}, nil, "ns", []string{"get"}, log); got != want || err != nil {
			t.Errorf("%s is %s outside of a cluster: %v", transport, got, err)
		}
	}
}

// Only an answer of the cluster decides about rights.
func TestOnlyTheClusterDecidesAboutRights(t *testing.T) {
	down := apierrors.NewInternalError(errors.New("etcd has no leader"))
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "selfsubjectaccessreviews"}, "", nil)
	for _, c := range []struct {
		name    string
		fails   int
		err     error
		denied  string
		missing string
		want    error
	}{
		{name: "all"},
		{name: "one is denied", denied: "create", missing: "create"},
		{name: "a failure that ends", fails: 2, err: down},
		{name: "a failure that stays", fails: 100, err: down, want: providers.ErrUnavailable},
		{name: "reviews are forbidden", fails: 100, err: forbidden, missing: "get"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := fake.NewClientset()
				client.PrependReactor("create", "selfsubjectaccessreviews", func(action k8stesting.Action) (bool, runtime.Object, error) {
					if c.fails--; c.fails >= 0 {
						return true, nil, c.err
					}
					review := action.(k8stesting.CreateAction).GetObject().(*authorizationv1.SelfSubjectAccessReview)
					review.Status.Allowed = review.Spec.ResourceAttributes.Verb != c.denied
					return true, review, nil
				})
				missing, err := missingRight(t.Context(), client.AuthorizationV1(), "ns", []string{"get", "create"})
				if missing != c.missing || !errors.Is(err, c.want) {
					t.Errorf("%q, %v", missing, err)
				}
			})
		})
	}
}
