// Package egress is the network of a sandbox that has none of its own but may
// connect to allowed destinations. Programs reach it in these ways:
//
//   - a proxy on 127.0.0.1:3128 that speaks HTTP (CONNECT and absolute URLs) and
//     SOCKS5, to which the environment of commands points
//   - a name server on 127.0.0.1:53 that gives each allowed name an address of its
//     own, on which the agent listens, for programs that ignore proxies
//   - addresses that the rules allow without a name, where the sandbox has local
//     routes for them
//
// Where the agent may not listen at such ports, or resolvers ask another name server,
// it can listen at others and redirect the connects of commands to them.
//
// Every connection is announced to the server, which decides, connects, and
// carries the bytes. Nothing here protects anything: the sandbox has no route,
// and the server trusts no agent.
package egress

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandgate/sandgate/agent/fault"
	"github.com/sandgate/sandgate/agent/spawn"
)

// Bounds of what programs make the agent hold.
const (
	// maxConns bounds the connections of programs. Each holds a descriptor and up
	// to two stacks.
	maxConns = 1024
	// setupTime bounds what a program may take to say where it connects to.
	setupTime = 30 * time.Second
	// dialTime bounds the server's answer to a connection.
	dialTime = 60 * time.Second
)

// Config configures a Service.
type Config struct {
	// Enabled opens the proxy and the name server.
	Enabled bool
	// Proxy and NameServer are their addresses. Defaults: 127.0.0.1:3128 and
	// 127.0.0.1:53, which is where resolvers ask.
	Proxy, NameServer string
	// Redirect makes the kernel report the connects of commands. Then the service
	// redirects those that are for the name server, and those for ports at which it may
	// not listen. Nil: it does not.
	Redirect func() (*spawn.Connects, error)
	// Resolv is the configuration of resolvers. Default: /etc/resolv.conf.
	Resolv string
	// AttachTime is how long a connection waits for a server: a sandbox has none when
	// it has just been created, and while its server restarts. Default: 5 s.
	AttachTime time.Duration
	// Log is where the service logs.
	Log *slog.Logger
}

// Service answers the calls of AgentService about egress.
type Service struct {
	cfg      Config
	recovery fault.Recovery
	ctx      context.Context //nolint:containedctx // the service's own life, which no caller has
	cancel   context.CancelCauseFunc
	work     sync.WaitGroup
	conns    chan struct{} // one slot for each connection
	servers  *servers
	// upstreams are the proxy's, for plain HTTP.
	upstreams upstreams
	names     *names
	addresses *addresses
	// nameServer is where the name server listens. redirecting, searches: see Redirect.
	nameServer  netip.AddrPort
	redirecting atomic.Bool
	searches    []string
	open        openSet
	refused     refused
}

// errStopped ends connections when the agent ends.
var errStopped = errors.New("the agent is ending")

// New returns a service. If it is enabled, its proxy and its name server listen.
// Close ends it. The name server needs port 53: without it, programs that ignore
// proxies have no network, which the service logs.
func New(cfg Config) (*Service, error) {
	cfg.Proxy = cmp.Or(cfg.Proxy, "127.0.0.1:3128")
	cfg.NameServer = cmp.Or(cfg.NameServer, "127.0.0.1:53")
	cfg.Resolv = cmp.Or(cfg.Resolv, "/etc/resolv.conf")
	cfg.AttachTime = cmp.Or(cfg.AttachTime, 5*time.Second)
	s := &Service{cfg: cfg, recovery: fault.Recovery{Log: cfg.Log}, conns: make(chan struct{}, maxConns)}
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	s.names = newNames(s)
	s.addresses = newAddresses(s)
	s.servers = &servers{wait: cfg.AttachTime, dialTime: dialTime, pending: make(map[uint64]*pending)}
	s.upstreams.dial = s.dialHTTP
	s.upstreams.renew()
	if !cfg.Enabled {
		return s, nil
	}
	if err := s.listenProxy(); err != nil {
		s.Close()
		return nil, err
	}
	if err := s.openNames(); err != nil {
		cfg.Log.Warn("programs that ignore proxies have no network", "error", err)
	}
	return s, nil
}

// openNames opens the name server, at another port if need be.
func (s *Service) openNames() error {
	err := s.listenDNS(s.cfg.NameServer)
	if s.cfg.Redirect == nil {
		return err
	}
	s.searches = searchDomains(s.cfg.Resolv)
	if err != nil {
		if another := s.listenDNS(anyPort); another != nil {
			return errors.Join(err, another)
		}
	}
	if failed := s.startRedirect(err); failed != nil {
		return errors.Join(err, failed)
	}
	return nil
}

// Close closes all connections and waits for what the service started.
func (s *Service) Close() {
	s.cancel(errStopped)
	s.open.close()
	s.work.Wait()
}

// Env returns the variables that point programs to the proxy, as "NAME=value".
func (s *Service) Env() []string {
	if !s.cfg.Enabled {
		return nil
	}
	proxy := "http://" + s.cfg.Proxy
	env := []string{"NODE_USE_ENV_PROXY=1"}
	for _, v := range []struct{ upper, lower, value string }{
		{"HTTP_PROXY", "http_proxy", proxy},
		{"HTTPS_PROXY", "https_proxy", proxy},
		// Not SOCKS: with it here, several HTTP libraries fail for lack of an optional
		// package.
		{"ALL_PROXY", "all_proxy", proxy},
		{"NO_PROXY", "no_proxy", "localhost,127.0.0.1,::1"},
	} {
		env = append(env, v.upper+"="+v.value, v.lower+"="+v.value)
	}
	return env
}

// listen opens a listener for TCP and serves its connections, each in a goroutine of
// its own, until Close.
func (s *Service) listen(address string, serve func(*net.TCPConn)) (net.Listener, error) {
	return s.listenWith(&net.ListenConfig{}, "tcp4", address, serve)
}

func (s *Service) listenWith(config *net.ListenConfig, network, address string, serve func(*net.TCPConn)) (net.Listener, error) {
	l, err := config.Listen(s.ctx, network, address)
	if err != nil {
		return nil, err
	}
	if !s.open.add(l) {
		return nil, errStopped
	}
	s.work.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				if errors.Is(err, net.ErrClosed) {
					return
				}
				// Out of descriptors, or a connection that was reset meanwhile.
				select {
				case <-s.ctx.Done():
				case <-time.After(10 * time.Millisecond):
				}
				continue
			}
			s.accept(conn.(*net.TCPConn), serve)
		}
	})
	return l, nil
}

// accept serves a connection, or resets it when there are too many.
func (s *Service) accept(conn *net.TCPConn, serve func(*net.TCPConn)) {
	select {
	case s.conns <- struct{}{}:
	default:
		reset(conn)
		return
	}
	if !s.open.add(conn) {
		<-s.conns
		return
	}
	s.work.Go(func() {
		defer func() {
			s.open.remove(conn)
			<-s.conns
		}()
		s.recovery.Guard("a connection of a program", func() { serve(conn) })
	})
}

// reset closes a connection so that its program sees an error, and no regular end.
func reset(conn *net.TCPConn) {
	_ = conn.SetLinger(0)
	_ = conn.Close()
}
