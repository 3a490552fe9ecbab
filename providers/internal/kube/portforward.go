package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/httpstream"
	"k8s.io/apimachinery/pkg/util/portforward"
	"k8s.io/client-go/transport/websocket"
)

// errNotForwarded: the node said why it does not forward to the port, or not any
// longer.
var errNotForwarded = errors.New("its node does not forward to it")

// Forward connects to a port on the loopback of a pod, through the API server,
// which needs the verbs create and, before Kubernetes 1.35, get on
// pods/portforward. It returns when the API server has agreed: that nobody
// listens there is what a read then says. The context bounds only that.
//
// A deadline that passes ends the connection.
func (e *Executor) Forward(ctx context.Context, pod *corev1.Pod, port int32) (net.Conn, error) {
	target := e.core.Post().Resource("pods").Namespace(pod.Namespace).Name(pod.Name).SubResource("portforward").URL()
	wire, err := e.forwardBySocket(ctx, target)
	if err != nil && otherProtocolMayDo(err) {
		wire, err = e.forwardBySPDY(ctx, target)
	}
	where := pod.Namespace + "/" + pod.Name
	if err == nil {
		c := newForwarded(wire, address(fmt.Sprint(where, ":", port)))
		if err = c.begin(port); err == nil {
			return c, nil
		}
		_ = c.Close()
	}
	return nil, streamError(ctx, "forward to pod "+where, err)
}

// forwardedEnd is what Forward offers to connect to.
func (e *Executor) forwardedEnd(pod *corev1.Pod, port int32) end {
	return end{
		name: ListenAddress(port, true) + " in the pod", dial: func(ctx context.Context) (net.Conn, error) { return e.Forward(ctx, pod, port) },
		refused:     "or the pod's runtime does not forward ports, as gVisor and Kata do not: serve with the way " + WayExec + " then",
		unreachable: "the API server must reach the pod's node, and nothing on the way may hold back forwarded ports",
	}
}

// forwardBySocket has the API server carry SPDY to the node within WebSocket.
func (e *Executor) forwardBySocket(ctx context.Context, target *url.URL) (io.ReadWriteCloser, error) {
	transport, holder, err := websocket.RoundTripperFor(e.config)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), nil)
	if err != nil {
		return nil, err
	}
	conn, err := websocket.Negotiate(transport, holder, request, portforward.WebsocketsSPDYTunnelingPortForwardV1)
	if err != nil {
		return nil, err
	}
	return &socketWire{wsConn: conn, below: cutConn{conn.NetConn()}}, nil
}

// socketWire is a WebSocket connection as one stream of bytes.
type socketWire struct {
	wsConn
	below   net.Conn
	message io.Reader
}

func (w *socketWire) Read(p []byte) (int, error) {
	for {
		if w.message == nil {
			kind, message, err := w.NextReader()
			if err != nil {
				return 0, err
			}
			if kind != binaryMessage {
				return 0, fmt.Errorf("a message of kind %d from the API server", kind)
			}
			w.message = message
		}
		n, err := w.message.Read(p)
		if errors.Is(err, io.EOF) {
			w.message, err = nil, nil
		}
		if n > 0 || err != nil {
			return n, err
		}
	}
}

// Write sends one message.
func (w *socketWire) Write(p []byte) (int, error) {
	message, err := w.NextWriter(binaryMessage)
	if err != nil {
		return 0, err
	}
	n, err := message.Write(p)
	return n, errors.Join(err, message.Close())
}

func (w *socketWire) Close() error { return w.below.Close() }

// forwardBySPDY is for API servers and ways to them that do not let WebSocket
// through.
func (e *Executor) forwardBySPDY(ctx context.Context, target *url.URL) (io.ReadWriteCloser, error) {
	upgrade, transport, err := e.upgrader()
	if err != nil {
		return nil, err
	}
	// What is made lives on when the context ends, which bounds only the making.
	life, cut := context.WithCancelCause(context.WithoutCancel(ctx))
	lives := context.AfterFunc(ctx, func() { cut(context.Cause(ctx)) })
	defer lives()
	request, err := http.NewRequestWithContext(life, http.MethodPost, target.String(), nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set(httpstream.HeaderProtocolVersion, portforward.PortForwardV1Name)
	response, err := transport.RoundTrip(request)
	if err != nil {
		cut(err)
		return nil, err
	}
	if response.StatusCode != http.StatusSwitchingProtocols {
		_, err := upgrade.NewConnection(response) // which reads the refusal
		return nil, err
	}
	return upgrade.conn, nil
}
