package kube

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// closesInTime is how long Executor.Close may take, with what a busy machine adds.
const closesInTime = closeGrace + 20*time.Second

// A peer that takes nothing does not keep a tunnel from closing.
func TestTunnelClosesBesideAPeerThatReadsNothing(t *testing.T) {
	tunnelTo(t, func(_ io.Reader, stdout, _ io.Writer, gone <-chan struct{}) int {
		_, _ = io.WriteString(stdout, "ready\n")
		<-gone
		return 0
	}, func(t *testing.T, s *execServer, e *Executor, conn net.Conn) {
		if err := conn.SetWriteDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
			t.Error(err)
		}
		if n, err := conn.Write(make([]byte, 64<<20)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("the peer takes all: %d bytes, %v", n, err)
		}
		if !closedWithin(e, closesInTime) {
			t.Errorf("it is not closed after %v", closesInTime)
			s.cut()
		}
	})
}

// Run ends with its caller, also where nothing is read of what it writes.
func TestRunEndsBesideAPeerThatReadsNothing(t *testing.T) {
	why := errors.New("the caller has had enough")
	s, e := newExecServer(t, func(_ io.Reader, _, _ io.Writer, gone <-chan struct{}) int {
		<-gone
		return 0
	})
	ctx, cancel := context.WithTimeoutCause(t.Context(), 500*time.Millisecond, why)
	defer cancel()
	ran := make(chan error, 1)
	go func() {
		_, err := e.Run(ctx, inPod, []string{"program"}, zeros{})
		ran <- err
	}()
	select {
	case err := <-ran:
		if !errors.Is(err, why) {
			t.Errorf("%v", err)
		}
	case <-time.After(closesInTime):
		t.Errorf("it has not ended after %v", closesInTime)
		s.cut()
	}
}

// An API server that takes the request and never answers is left behind, too.
func TestExecThatIsNeverAnswered(t *testing.T) {
	noLeaks(t)
	gone := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-gone }))
	defer server.Close()
	defer close(gone)
	config := &rest.Config{Host: server.URL}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	e := NewExecutor(config, client.CoreV1().RESTClient())
	why := errors.New("the caller has had enough")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 200*time.Millisecond, why)
	defer cancel()
	if _, err := e.Tunnel(ctx, inPod, []string{"program"}); !errors.Is(err, why) {
		t.Errorf("%v", err)
	}
	if !closedWithin(e, closesInTime) {
		t.Errorf("it is not closed after %v", closesInTime)
		server.CloseClientConnections()
	}
	cancelled, enough := context.WithCancelCause(t.Context())
	defer time.AfterFunc(200*time.Millisecond, func() { enough(why) }).Stop()
	ran := make(chan error, 1)
	go func() {
		_, err := e.Run(cancelled, inPod, []string{"program"}, nil)
		ran <- err
	}()
	select {
	case err := <-ran:
		if !errors.Is(err, why) {
			t.Errorf("run: %v", err)
		}
	case <-time.After(closesInTime):
		t.Errorf("run has not ended after %v", closesInTime)
	}
}

func closedWithin(e *Executor, limit time.Duration) bool {
	closed := make(chan struct{})
	go func() {
		e.Close()
		close(closed)
	}()
	select {
	case <-closed:
		return true
	case <-time.After(limit):
		return false
	}
}

// zeros is an input without an end.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }
