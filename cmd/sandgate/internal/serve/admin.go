package serve

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/sandgate/sandgate/server"
)

// admin is a running listener for operators, or none.
type admin struct {
	http *http.Server
	at   string
	done chan error
}

// open listens where --admin-listen says. A port without a host is the loopback
// address's: that others can connect must be said.
func (a adminConfig) open(ctx context.Context, insecure bool) (net.Listener, error) {
	if a.Listen == "" {
		if a.Profiles {
			return nil, errors.New("--pprof needs --admin-listen")
		}
		return nil, nil
	}
	at := a.Listen
	if strings.HasPrefix(at, ":") {
		at = "127.0.0.1" + at
	}
	l, err := server.Listen(ctx, at)
	if err != nil {
		return nil, fmt.Errorf("--admin-listen: %w", err)
	}
	if tcp, ok := l.Addr().(*net.TCPAddr); ok && !tcp.IP.IsLoopback() && a.Profiles && !insecure {
		return nil, errors.Join(fmt.Errorf("--pprof shows the server's memory to everybody who can connect to %s; "+
			"listen on loopback, or say --insecure", l.Addr()), l.Close())
	}
	return l, nil
}

// serveAdmin serves handler at l, which may be nil.
func serveAdmin(l net.Listener, handler http.Handler) *admin {
	a := &admin{done: make(chan error, 1)}
	if l == nil {
		return a
	}
	a.http = &http.Server{
		Handler: handler, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
	}
	a.at = l.Addr().String()
	go func() { a.done <- a.http.Serve(l) }()
	return a
}

// adminStopTime bounds the wait for scrapes under way.
const adminStopTime = 10 * time.Second

// close returns when no request is under way any more: they ask the provider.
func (a *admin) close(ctx context.Context) error {
	if a.http == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), adminStopTime)
	defer cancel()
	err := a.http.Shutdown(ctx)
	if err != nil {
		err = errors.Join(err, a.http.Close())
	}
	if served := <-a.done; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}
