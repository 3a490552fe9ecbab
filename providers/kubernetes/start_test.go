package kubernetes

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/httpstream/wsstream"
	"k8s.io/apimachinery/pkg/util/remotecommand"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	k8stesting "k8s.io/client-go/testing"

	"github.com/sandgate/sandgate/providers/internal/kube"
	"github.com/sandgate/sandgate/streaming/sealed"
)

// The connection of a creation is made after the setup script, however long that
// runs.
func TestConnectionAfterSetup(t *testing.T) {
	var ran atomic.Bool
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn := wsstream.NewConn(map[string]wsstream.ChannelProtocolConfig{remotecommand.StreamProtocolV5Name: {
			Binary: true, Channels: []wsstream.ChannelType{wsstream.ReadChannel, wsstream.WriteChannel, wsstream.WriteChannel, wsstream.WriteChannel},
		}})
		_, streams, err := conn.Open(w, r)
		if err != nil {
			t.Error(err)
			return
		}
		ran.Store(true)
		_, _ = streams[3].Write([]byte(`{"status": "Success"}`))
		_ = conn.Close()
	}))
	defer server.Close()
	p, client := fakeProvider(t)
	config := &rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	api, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	p.exec = kube.NewExecutor(config, api.CoreV1().RESTClient())
	p.config.Transport = TransportPodIP
	p.agents = kube.NewAgents(p.exec, TransportPodIP, p.Log)
	defer p.agents.Close()

	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p.config.AgentPort = int32(tcp.Addr().(*net.TCPAddr).Port)
	pl, err := p.plan("name", withOptions(`{"setup_script": "sleep 60"}`))
	if err != nil {
		t.Fatal(err)
	}
	agent, err := sealed.NewListener(tcp, pl.agentSecret)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = agent.Close() }()
	before := make(chan bool, 10)
	go func() {
		for {
			c, err := agent.Accept()
			if err != nil {
				return
			}
			before <- !ran.Load()
			defer func() { _ = c.Close() }()
		}
	}()
	pod := pl.makePod()
	pod.Namespace, pod.UID = "ns", "uid"
	pod.Status = corev1.PodStatus{
		Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: "127.0.0.1"}},
		ContainerStatuses: []corev1.ContainerStatus{{Name: containerName, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}},
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: pl.secret, Namespace: "ns"}, Data: map[string][]byte{kube.SecretKey: []byte(pl.agentSecret.Text())}}
	if err := errors.Join(client.Tracker().Add(pod), client.Tracker().Add(secret)); err != nil {
		t.Fatal(err)
	}
	conn, err := p.bringUp(t.Context(), pl, pod)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	for _, want := range []bool{true, false} {
		select {
		case got := <-before:
			if got != want {
				t.Errorf("a connection before the script: %v", got)
			}
		case <-time.After(10 * time.Second):
			t.Fatal("there is no connection after the script")
		}
	}
}

// A pod that the API server refuses leaves no Secret behind.
func TestRefusedPodLeavesNoSecret(t *testing.T) {
	for _, c := range []struct {
		name string
		err  error
		left int
	}{
		{"refused", apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "name", errors.New("exceeded quota: pods")), 0},
		{"no answer", errors.New("connection reset"), 1}, // the pod may be there
	} {
		t.Run(c.name, func(t *testing.T) {
			p, client := fakeProvider(t)
			client.PrependReactor("create", "pods", func(k8stesting.Action) (bool, runtime.Object, error) { return true, nil, c.err })
			p.config.Transport = TransportPodIP
			pl, err := p.plan("name", withOptions(""))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := p.makePod(t.Context(), pl, "ns", nil, nil); !errors.Is(err, c.err) {
				t.Errorf("%v", err)
			}
			list, err := client.CoreV1().Secrets("ns").List(t.Context(), metav1.ListOptions{})
			if err != nil || len(list.Items) != c.left {
				t.Errorf("%d secrets are left, %v", len(list.Items), err)
			}
		})
	}
}

// The container that waits for the agent takes the writing process along when it
// ends. It appears to run until the kubelet has reported its end.
func TestWriterMayEndWithItsContainer(t *testing.T) {
	killed := fmt.Errorf("write the agent: %w", errWriterKilled)
	again := func() error {
		t.Error("it is written again")
		return nil
	}
	t.Run("a kubelet that says late that the container ended", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var w agentWriter
			if err := w.write(func() error { return killed }); err != nil {
				t.Error(err)
			}
			time.Sleep(15 * time.Second)
			if err := w.write(again); err != nil {
				t.Errorf("after 15 s: %v", err)
			}
		})
	})
	t.Run("a container that goes on waiting", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var w agentWriter
			if err := w.write(func() error { return killed }); err != nil {
				t.Error(err)
			}
			time.Sleep(25 * time.Second)
			if err := w.write(again); !errors.Is(err, errWriterKilled) {
				t.Errorf("after 25 s: %v", err)
			}
		})
	})
	t.Run("any other failure is told at once", func(t *testing.T) {
		var w agentWriter
		why := errors.New("no space left on device")
		if err := w.write(func() error { return why }); !errors.Is(err, why) {
			t.Error(err)
		}
	})
}
