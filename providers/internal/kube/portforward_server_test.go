package kube

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/websocket"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/httpstream"
	streamspdy "k8s.io/apimachinery/pkg/util/httpstream/spdy"
	"k8s.io/apimachinery/pkg/util/httpstream/wsstream"
	"k8s.io/apimachinery/pkg/util/portforward"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// forwardServer plays the API server and a pod's node: it forwards to the ports
// of this machine, as containerd does to those of a pod.
type forwardServer struct {
	*httptest.Server
	mu      sync.Mutex
	open    map[io.Closer]bool
	running sync.WaitGroup
}

// newForwardServer serves by one protocol, and gives an Executor that reaches it.
// What is left at the end is a failure.
func newForwardServer(t *testing.T, protocol string) (*forwardServer, *Executor) {
	t.Helper()
	noLeaks(t)
	s := &forwardServer{open: map[io.Closer]bool{}}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case !strings.HasSuffix(r.URL.Path, "/namespaces/ns/pods/pod/portforward"):
			http.NotFound(w, r)
		case protocol == "WebSocket" && wsstream.IsWebSocketRequest(r):
			s.webSocket(w, r)
		case protocol == "SPDY" && !wsstream.IsWebSocketRequest(r):
			s.spdy(t, w, r)
		default:
			http.Error(w, "not by this protocol", http.StatusNotImplemented)
		}
	}))
	s.TLS = &tls.Config{NextProtos: []string{"http/1.1"}}
	s.StartTLS()
	config := &rest.Config{Host: s.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.cut()
		s.running.Wait()
		s.Close()
	})
	return s, NewExecutor(config, client.CoreV1().RESTClient())
}

// cut breaks every connection.
func (s *forwardServer) cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.open {
		_ = c.Close()
	}
}

// opened remembers what cut breaks.
func (s *forwardServer) opened(c io.Closer) (closed func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open[c] = true
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.open, c)
	}
}

func (s *forwardServer) webSocket(w http.ResponseWriter, r *http.Request) {
	websocket.Server{
		Handshake: func(c *websocket.Config, _ *http.Request) error {
			c.Protocol = []string{portforward.WebsocketsSPDYTunnelingPortForwardV1}
			return nil
		},
		Handler: func(c *websocket.Conn) {
			c.PayloadType = websocket.BinaryFrame
			n := &node{server: s}
			conn, err := streamspdy.NewServerConnection(c, n.add)
			if err == nil {
				n.serve(conn)
			}
		},
	}.ServeHTTP(w, r)
}

func (s *forwardServer) spdy(t *testing.T, w http.ResponseWriter, r *http.Request) {
	if _, err := httpstream.Handshake(r, w, []string{portforward.PortForwardV1Name}); err != nil {
		t.Errorf("handshake: %v", err)
		return
	}
	n := &node{server: s}
	if conn := streamspdy.NewResponseUpgrader().UpgradeResponse(w, r, n.add); conn != nil {
		n.serve(conn)
	}
}

// node forwards one connection.
type node struct {
	server     *forwardServer
	mu         sync.Mutex
	data, errs httpstream.Stream
	pod        net.Conn
	gone       bool
}

func (n *node) serve(conn httpstream.Connection) {
	defer func() { _ = conn.Close() }()
	defer n.server.opened(conn)()
	<-conn.CloseChan()
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.gone = true; n.pod != nil {
		_ = n.pod.Close()
	}
}

// connect connects to the pod's port, unless nobody is interested any more.
func (n *node) connect(port string) (net.Conn, error) {
	conn, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", port))
	n.mu.Lock()
	defer n.mu.Unlock()
	if err == nil && n.gone {
		err = errors.Join(net.ErrClosed, conn.Close())
	}
	n.pod = conn
	return conn, err
}

func (n *node) add(stream httpstream.Stream, _ <-chan struct{}) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch h := stream.Headers(); {
	case h.Get(corev1.PortForwardRequestIDHeader) != "0":
		return errors.New("another request")
	case h.Get(corev1.StreamType) == corev1.StreamTypeError && n.errs == nil:
		n.errs = stream
	case h.Get(corev1.StreamType) == corev1.StreamTypeData && n.data == nil:
		n.data = stream
	default:
		return errors.New("one stream too many")
	}
	// Whoever writes to a stream that was never replied to waits for ever, and the
	// library does not tell that it could not reply.
	err := stream.(interface{ SendReply(http.Header, bool) error }).SendReply(http.Header{}, false)
	if err == nil && n.data != nil && n.errs != nil {
		n.server.running.Go(n.forward)
	}
	return err
}

// nodeGrace is how long a node lets the other direction of a connection go on.
const nodeGrace = 50 * time.Millisecond

func (n *node) forward() {
	defer func() { _ = n.data.Close() }()
	defer func() { _ = n.errs.Close() }()
	// Until its end: the library waits for whoever is to read what has come.
	drain := func() { _, _ = io.Copy(io.Discard, n.data) }
	conn, err := n.connect(n.data.Headers().Get(corev1.PortHeader))
	if err != nil {
		go drain()
		fmt.Fprintf(n.errs, "error forwarding port: %v", err)
		return
	}
	done := make(chan error, 2)
	go func() {
		_, err := io.Copy(n.data, conn)
		done <- err
	}()
	go func() {
		_, err := io.Copy(conn, n.data)
		done <- err
		drain()
	}()
	err = <-done
	select {
	case other := <-done:
		err = errors.Join(err, other)
	case <-time.After(nodeGrace):
	}
	_ = conn.Close()
	if err != nil {
		fmt.Fprintf(n.errs, "error forwarding port: %v", err)
	}
}
