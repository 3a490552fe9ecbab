package carrier

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/agentconn"
	"github.com/sandgate/sandgate/server/egress"
)

const (
	// routeTime bounds one change of a sandbox's routes.
	routeTime = 10 * time.Second
	// listenTime bounds the agent's answer to the addresses to listen at.
	listenTime = 2 * time.Second
)

// AwaitRoutes waits until programs of a held sandbox reach the addresses of its rules
// directly, if they ever do.
func (c *Carrier) AwaitRoutes(ctx context.Context, key agentconn.Key) {
	c.mu.Lock()
	h := c.holders[key.Name]
	c.mu.Unlock()
	if h == nil || c.cfg.Route == nil {
		return
	}
	late := time.NewTimer(routeTime)
	defer late.Stop()
	select {
	case <-h.awaitRouted():
	case <-h.ctx.Done():
	case <-late.C:
	case <-ctx.Done():
	}
}

// route leads the addresses of the present rules to the agent, which listens there. It
// does nothing where the agent or the sandbox's runtime can't.
func (h *holder) route(ctx context.Context) {
	if h.carrier.cfg.Route == nil {
		return
	}
	h.routing.Lock()
	defer h.routing.Unlock()
	h.mu.Lock()
	a, policy := h.stream, h.policy
	h.mu.Unlock()
	if a == nil {
		return
	}
	defer h.noteRouted(a)
	if a.noRoutes {
		return
	}
	ranges := policy.Addresses()
	if a.listensAt != nil && slices.EqualFunc(*a.listensAt, ranges, sameRange) {
		return
	}
	before := a.listensAt
	if before == nil {
		before = &[]egress.AddressRange{}
	}
	// Until the agent has let go of what it loses, the programs' ends of connections
	// need their routes.
	union := prefixesOf(*before, ranges)
	err := h.setRoutes(ctx, union)
	if err == nil {
		err = a.listenAt(ctx, ranges)
	}
	if wanted := prefixesOf(ranges); err == nil && !slices.Equal(union, wanted) {
		err = h.setRoutes(ctx, wanted)
	}
	a.listensAt = nil
	switch {
	case err == nil:
		a.listensAt = &ranges
	case errors.Is(err, providers.ErrUnsupported):
		a.noRoutes = true
	case ctx.Err() == nil:
		h.carrier.cfg.Log.WarnContext(ctx, "programs reach the addresses of new network rules only through the proxy",
			"sandbox_id", h.key.ID, "tenant", h.key.Tenant, "error", err)
	}
}

func (h *holder) setRoutes(ctx context.Context, prefixes []netip.Prefix) error {
	ctx, cancel := context.WithTimeoutCause(ctx, routeTime, errors.New("the routes of a sandbox could not be changed in time"))
	defer cancel()
	return h.carrier.cfg.Route(ctx, h.key.Name, prefixes)
}

func sameRange(a, b egress.AddressRange) bool {
	return a.Prefix == b.Prefix && slices.Equal(a.Ports, b.Ports)
}

// prefixesOf returns the prefixes of the ranges, sorted, each once.
func prefixesOf(lists ...[]egress.AddressRange) []netip.Prefix {
	var all []netip.Prefix
	for _, list := range lists {
		for _, r := range list {
			all = append(all, r.Prefix)
		}
	}
	slices.SortFunc(all, netip.Prefix.Compare)
	return slices.Compact(all)
}

// listenAt has the agent listen at these addresses, and waits until it does.
func (a *announcer) listenAt(ctx context.Context, ranges []egress.AddressRange) error {
	a.addressesID++
	m := &agentv1.EgressAddresses{Id: a.addressesID}
	for _, r := range ranges {
		one := &agentv1.EgressAddressRange{Cidr: r.Prefix.String()}
		for _, port := range r.Ports {
			one.Ports = append(one.Ports, uint32(port))
		}
		m.Ranges = append(m.Ranges, one)
	}
	if err := a.send(&agentv1.AcceptEgressRequest{Message: &agentv1.AcceptEgressRequest_Addresses{Addresses: m}}); err != nil {
		return err
	}
	late := time.NewTimer(listenTime)
	defer late.Stop()
	for {
		select {
		case id := <-a.listening:
			if id == a.addressesID {
				return nil
			}
		case <-late.C:
			return errors.New("the agent did not listen at the addresses in time")
		case <-a.stream.Context().Done():
			return context.Cause(a.stream.Context())
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// listens takes the agent's answer. One that nobody waits for is dropped.
func (a *announcer) listens(id uint64) {
	select {
	case a.listening <- id:
	default:
		select {
		case <-a.listening:
		default:
		}
		select {
		case a.listening <- id:
		default:
		}
	}
}
