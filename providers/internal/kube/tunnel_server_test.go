package kube

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/httpstream/wsstream"
	"k8s.io/apimachinery/pkg/util/remotecommand"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// program is a command in a container. It ends at the latest when gone is closed.
type program func(stdin io.Reader, stdout, stderr io.Writer, gone <-chan struct{}) (code int)

// execServer plays an exec of the API server.
type execServer struct {
	*httptest.Server
	mu      sync.Mutex
	run     program
	open    map[io.Closer]bool
	running sync.WaitGroup
	gone    chan struct{}
}

// newExecServer serves one program, and gives an Executor that reaches it. What
// is left at the end is a failure.
func newExecServer(t *testing.T, run program) (*execServer, *Executor) {
	t.Helper()
	noLeaks(t)
	s := &execServer{run: run, open: map[io.Closer]bool{}, gone: make(chan struct{})}
	s.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.webSocket(t, w, r) }))
	config := &rest.Config{Host: s.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	e := NewExecutor(config, client.CoreV1().RESTClient())
	t.Cleanup(func() {
		e.Close()
		close(s.gone)
		s.cut()
		s.running.Wait()
		s.Close()
	})
	return s, e
}

// cut breaks every connection.
func (s *execServer) cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.open {
		_ = c.Close()
	}
}

// serve runs the program, and returns the status of its end.
func (s *execServer) serve(conn io.Closer, stdin io.Reader, stdout, stderr io.Writer) []byte {
	s.mu.Lock()
	s.open[conn] = true
	s.mu.Unlock()
	code := s.run(stdin, stdout, stderr, s.gone)
	s.mu.Lock()
	delete(s.open, conn)
	s.mu.Unlock()
	status := metav1.Status{Status: metav1.StatusSuccess}
	if code != 0 {
		status = metav1.Status{
			Status: metav1.StatusFailure, Reason: remotecommand.NonZeroExitCodeReason,
			Message: fmt.Sprintf("command terminated with non-zero exit code: %d", code),
			Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: remotecommand.ExitCodeCauseType, Message: strconv.Itoa(code)}}},
		}
	}
	text, err := json.Marshal(status)
	if err != nil {
		panic(err)
	}
	return text
}

func (s *execServer) webSocket(t *testing.T, w http.ResponseWriter, r *http.Request) {
	conn := wsstream.NewConn(map[string]wsstream.ChannelProtocolConfig{remotecommand.StreamProtocolV5Name: {
		Binary: true, Channels: []wsstream.ChannelType{wsstream.ReadChannel, wsstream.WriteChannel, wsstream.WriteChannel, wsstream.WriteChannel},
	}})
	_, streams, err := conn.Open(w, r)
	if err != nil {
		t.Errorf("open: %v", err)
		return
	}
	s.running.Go(func() {
		_, _ = streams[3].Write(s.serve(conn, streams[0], streams[1], streams[2]))
		_ = conn.Close()
	})
}
