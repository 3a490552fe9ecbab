package kube

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"

	"k8s.io/apimachinery/pkg/util/httpstream"
	spdystream "k8s.io/apimachinery/pkg/util/httpstream/spdy"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
)

var errTunnelClosed = errors.New("the tunnel was closed")

// spdy is an exec by SPDY. Its standard input is a pipe, which brings the
// deadlines.
type spdy struct {
	net.Conn
	cancel context.CancelCauseFunc
}

func (s *spdy) CloseWrite() error { return s.Conn.Close() }

func (s *spdy) unblock() { _ = s.Conn.Close() }

func (s *spdy) Close() error {
	s.cancel(errTunnelClosed)
	return s.Conn.Close()
}

// input ends like a file when our end of the pipe is closed.
type input struct{ conn net.Conn }

func (r input) Read(p []byte) (int, error) {
	n, err := r.conn.Read(p)
	if err != nil {
		err = io.EOF
	}
	return n, err
}

func (e *Executor) streamSPDY(ctx context.Context, at Container, command []string, options remotecommand.StreamOptions) error {
	executor, err := e.newSPDY(e.url(at, command, options))
	if err != nil {
		return err
	}
	return executor.StreamWithContext(ctx, options)
}

// cutSPDY is client-go's executor, except that its connection does not outlive
// the context. client-go takes leave of each stream, and has no limit for that:
// beside a peer that reads nothing it would wait until the connection breaks.
type cutSPDY struct{ remotecommand.Executor }

func (e *Executor) newSPDY(target *url.URL) (remotecommand.Executor, error) {
	upgrade, transport, err := e.upgrader()
	if err != nil {
		return nil, err
	}
	executor, err := remotecommand.NewSPDYExecutorForTransports(transport, upgrade, http.MethodPost, target)
	return cutSPDY{executor}, err
}

// upgrader is for one upgrade, by the transport that it also returns.
func (e *Executor) upgrader() (*upgradeSPDY, http.RoundTripper, error) {
	tlsConfig, err := rest.TLSConfigFor(e.config)
	if err != nil {
		return nil, nil, err
	}
	proxy := e.config.Proxy
	if proxy == nil {
		proxy = http.ProxyFromEnvironment
	}
	dialer, err := spdystream.NewRoundTripperWithConfig(spdystream.RoundTripperConfig{TLS: tlsConfig, Proxier: proxy})
	if err != nil {
		return nil, nil, err
	}
	upgrade := &upgradeSPDY{SpdyRoundTripper: dialer}
	transport, err := rest.HTTPWrappersForConfig(e.config, upgrade)
	return upgrade, transport, err
}

func (e cutSPDY) StreamWithContext(ctx context.Context, options remotecommand.StreamOptions) error {
	life, cancel := context.WithCancelCause(ctx)
	defer cancel(errTunnelClosed)
	return e.Executor.StreamWithContext(life, options)
}

// upgradeSPDY makes one connection, and closes it when the context of its request
// ends.
type upgradeSPDY struct {
	*spdystream.SpdyRoundTripper
	conn cutConn
}

// RoundTrip asks for the upgrade. The headers are those of SpdyRoundTripper,
// which keeps its connection to itself.
func (u *upgradeSPDY) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set(httpstream.HeaderConnection, httpstream.HeaderUpgrade)
	r.Header.Set(httpstream.HeaderUpgrade, spdystream.HeaderSpdy31)
	dialled, err := u.Dial(r)
	if err != nil {
		return nil, err
	}
	u.conn = cutConn{dialled}
	context.AfterFunc(r.Context(), u.conn.cut)
	response, err := http.ReadResponse(bufio.NewReader(u.conn), r)
	if err != nil {
		u.conn.cut()
		return nil, err
	}
	return response, nil
}

// NewConnection implements client-go's Upgrader.
func (u *upgradeSPDY) NewConnection(r *http.Response) (httpstream.Connection, error) {
	if r.StatusCode != http.StatusSwitchingProtocols || !strings.EqualFold(r.Header.Get(httpstream.HeaderUpgrade), spdystream.HeaderSpdy31) {
		defer u.conn.cut()
		return u.SpdyRoundTripper.NewConnection(r) // which reads the refusal
	}
	return spdystream.NewClientConnectionWithPings(u.conn, socketPing)
}

// cutConn closes without TLS's own farewell, which would wait for the peer to
// read, and as often as one likes: spdystream waits a while after an error.
type cutConn struct{ net.Conn }

func (c cutConn) Close() error {
	c.cut()
	return nil
}

func (c cutConn) cut() {
	if sealed, ok := c.Conn.(*tls.Conn); ok {
		_ = sealed.NetConn().Close()
	}
	_ = c.Conn.Close()
}
