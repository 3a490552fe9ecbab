package egress

import (
	"context"
	"net"
	"net/http"
	"sync/atomic"
)

// upstreams are the proxy's connections to destinations of plain HTTP. A request takes
// an idle one of its host without asking a server again, so the idle ones end when
// another server attaches: it may have other rules.
type upstreams struct {
	dial    func(ctx context.Context, network, address string) (net.Conn, error)
	current atomic.Pointer[http.Transport]
}

// RoundTrip implements http.RoundTripper.
func (u *upstreams) RoundTrip(r *http.Request) (*http.Response, error) {
	return u.current.Load().RoundTrip(r)
}

// renew has later requests use new connections only. Those in use end with their
// requests.
func (u *upstreams) renew() {
	old := u.current.Swap(&http.Transport{
		DialContext: u.dial, DisableCompression: true, MaxIdleConns: 64, MaxIdleConnsPerHost: 8,
		IdleConnTimeout: proxyIdle, MaxResponseHeaderBytes: maxHeader,
	})
	if old != nil {
		old.CloseIdleConnections()
	}
}

// close closes the idle connections.
func (u *upstreams) close() { u.current.Load().CloseIdleConnections() }
