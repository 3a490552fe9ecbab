package server

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/agentconn"
	"github.com/sandgate/sandgate/server/audit"
	"github.com/sandgate/sandgate/server/carrier"
	"github.com/sandgate/sandgate/server/egress"
	"github.com/sandgate/sandgate/server/secret"
)

// maxEgressConns bounds the connections of a sandbox with the network mode PROXY.
const maxEgressConns = 256

// newCarrier returns the carrier of connections of sandboxes with the network mode
// PROXY. It has agent connections of its own, so that bulk data does not delay
// calls.
func (s *Server) newCarrier() *carrier.Carrier {
	agents := agentconn.New(agentconn.Config{
		Provider: s.provider, Version: s.cfg.Version, ProtocolMinor: s.cfg.protocolMinor, MaxRequest: s.cfg.Limits.MaxMessageBytes,
		Hello: s.cfg.Timing.Hello, Idle: s.cfg.Timing.AgentIdle, Small: true,
	})
	var route func(context.Context, string, []netip.Prefix) error
	if router, ok := s.provider.(providers.Router); ok {
		route = router.Route
	}
	return carrier.New(carrier.Config{
		Route: route, Agents: agents, Policy: func(spec providers.Spec) (*egress.Policy, error) { return s.rules().policy.Egress(spec) },
		Authority: s.authority, Secrets: s.secretsOf,
		Dialer:   &egress.Dialer{Resolver: s.cfg.Resolver, Roots: s.cfg.Roots},
		MaxConns: maxEgressConns, BytesPerSecond: s.cfg.Limits.MaxEgressBytesPerSecond, Take: s.egress.TryTake, Release: s.egress.Release, Log: s.log, OnOpen: s.metrics.EgressOpened, OnEnd: s.egressEnded,
	})
}

// authority returns the certificate authority of an incarnation of a sandbox.
func (s *Server) authority(key agentconn.Key, incarnation string) (*egress.Authority, error) {
	if s.authorities == nil {
		return nil, errors.New("the server has no spec secret to derive a certificate authority from")
	}
	return s.authorities.For(key.Tenant, key.ID, incarnation)
}

// trusted returns the certificate in PEM of the authority that commands of the
// sandbox must trust, nil if its rules need none.
func (s *Server) trusted(c *agentconn.Conn) ([]byte, error) {
	info := c.Info()
	if info.Spec.Network != providers.NetworkProxy || !s.rules().policy.ReadsRequests(info.Spec) {
		return nil, nil
	}
	if s.authorities == nil {
		return nil, nil // Connections that need it are refused.
	}
	authority, err := s.authority(c.Key, c.Incarnation)
	if err != nil {
		return nil, err
	}
	return authority.PEM(), nil
}

// secretsOf returns what puts the secrets of a tenant into requests.
func (s *Server) secretsOf(tenant string) egress.Secrets {
	if s.cfg.Secrets == nil {
		return nil
	}
	return secret.NewInjector(s.cfg.Secrets, tenant, s.log)
}

// holdNetwork begins to carry the connections of a sandbox, if its network needs
// that.
func (s *Server) holdNetwork(info providers.Info) {
	if info.Spec.Network == providers.NetworkProxy {
		s.carrier.Hold(agentconn.KeyOf(info))
	}
}

// awaitNetwork waits until programs of a new sandbox reach the addresses that its rules
// allow. Names need no wait: the agent holds their connections until a server attaches.
func (s *Server) awaitNetwork(ctx context.Context, info providers.Info) {
	if info.Spec.Network != providers.NetworkProxy {
		return
	}
	if policy, err := s.rules().policy.Egress(info.Spec); err == nil && len(policy.Addresses()) > 0 {
		s.carrier.AwaitRoutes(ctx, agentconn.KeyOf(info))
	}
}

// shareInterval is how often servers that share a substrate look for sandboxes and
// rules that another of them has made.
const shareInterval = 10 * time.Second

// holdNetworks does that for the sandboxes that this server did not create: those of an
// earlier one, and its share of those of all servers.
func (s *Server) holdNetworks() {
	ctx, cancel := s.untilHalt()
	defer cancel()
	shared, ok := s.provider.(providers.Membership)
	if !ok {
		s.holdOwn(ctx)
		return
	}
	views := make(chan func(name string) bool, 1)
	s.work.Go(func() {
		shared.Join(ctx, func(self string, live []string) {
			select {
			case <-views: // which nobody has seen
			default:
			}
			views <- func(name string) bool { return carrier.Owner(live, name) == self }
		})
	})
	var mine func(name string) bool
	tick := time.NewTicker(shareInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case mine = <-views:
		case <-tick.C:
		}
		if mine == nil {
			continue
		}
		all, err := s.proxied(ctx)
		if err != nil {
			if ctx.Err() == nil {
				s.log.WarnContext(ctx, "the sandboxes with the network mode PROXY could not be listed", "error", err)
			}
			continue
		}
		s.carrier.Share(ctx, all, mine)
	}
}

// holdOwn holds all sandboxes of a substrate that is this server's, once.
func (s *Server) holdOwn(ctx context.Context) {
	for ctx.Err() == nil {
		all, err := s.proxied(ctx)
		if err == nil {
			for _, info := range all {
				s.holdNetwork(info)
			}
			return
		}
		s.log.WarnContext(ctx, "the sandboxes with the network mode PROXY could not be listed", "error", err)
		select {
		case <-ctx.Done():
		case <-time.After(maintainInterval):
		}
	}
}

// proxied returns the active sandboxes with the network mode PROXY.
func (s *Server) proxied(ctx context.Context) ([]providers.Info, error) {
	var all []providers.Info
	q := providers.Query{Network: providers.NetworkProxy, States: []providers.State{providers.StateActive}, Limit: maxPage}
	for {
		page, err := s.provider.List(ctx, q)
		if err != nil {
			return nil, err
		}
		all = append(all, page.Sandboxes...)
		if q.Token = page.Next; q.Token == "" {
			return all, nil
		}
	}
}

// Outcomes of connections, besides the reasons of package egress.
const (
	egressOK          = "OK"
	egressLimit       = "limit"
	egressUnreachable = "unreachable"
	egressBroken      = "broken"
)

// egressEnded counts and records a connection of a sandbox.
func (s *Server) egressEnded(e carrier.Ended) {
	outcome, code := egressOK, codes.OK
	var denied *egress.Denied
	switch {
	case errors.As(e.Err, &denied):
		outcome, code = string(denied.Reason), codes.PermissionDenied
	case errors.Is(e.Err, carrier.ErrLimit), errors.Is(e.Err, carrier.ErrSharedLimit):
		outcome, code = egressLimit, codes.ResourceExhausted
	case e.Err != nil && e.Addr == "":
		outcome, code = egressUnreachable, codes.Unavailable
	case e.Err != nil:
		outcome, code = egressBroken, codes.Aborted
	}
	s.metrics.EgressEnded(outcome, e)
	if e.Unrecorded {
		return
	}
	r := audit.Record{
		Time: time.Now(), Phase: audit.Ended, Principal: "sandgate", Tenant: e.Key.Tenant, Operation: "Egress",
		SandboxID: e.Key.ID, Target: e.Target, Address: e.Addr, Code: code.String(), Duration: e.Duration,
		Bytes: e.Sent + e.Received, Suppressed: e.Suppressed,
	}
	if outcome != egressOK {
		r.Reason = outcome
	}
	if e.Addr == "" {
		r.Phase = audit.Refused
	}
	// The connection has ended either way.
	_ = s.audit.Record(context.Background(), r)
}
