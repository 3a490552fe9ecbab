package serve

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/sandgate/sandgate/server/listen"
)

// admin is the running admin listener, or none.
type admin struct {
	http *http.Server
	at   string
	done chan error
}

// open listens at --admin-listen. A port without a host is one of loopback: other
// machines can connect only if the address names another interface.
func (a adminConfig) open(ctx context.Context, insecure bool) (net.Listener, error) {
	if a.Listen == "" {
		if a.Profiles {
			return nil, errPprofAlone
		}
		return nil, nil
	}
	l, err := listen.Open(ctx, a.address())
	if err != nil {
		return nil, fmt.Errorf("--admin-listen: %w", err)
	}
	if tcp, ok := l.Addr().(*net.TCPAddr); ok && !tcp.IP.IsLoopback() && a.Profiles && !insecure {
		return nil, errors.Join(errPprofExposed(l.Addr().String()), l.Close())
	}
	return l, nil
}

// address returns the address to listen at, or "" for none.
func (a adminConfig) address() string {
	if strings.HasPrefix(a.Listen, ":") {
		return "127.0.0.1" + a.Listen
	}
	return a.Listen
}

var errPprofAlone = errors.New("--pprof needs --admin-listen")

func errPprofExposed(at string) error {
	return fmt.Errorf("--pprof exposes the server's memory to all clients that can connect to %s; "+
		"listen on loopback, or add --insecure", at)
}

// serveAdmin serves handler on l, which may be nil.
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

// adminStopTime bounds the wait for scrapes in progress.
const adminStopTime = 10 * time.Second

// close returns when no request is in progress: requests use the provider.
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
