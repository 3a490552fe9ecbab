package local

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"

	"github.com/sandgate/sandgate/localroute"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/local/oci"
)

var _ providers.Router = (*Provider)(nil)

// Route makes exactly these prefixes local in the sandbox's network namespace, besides
// the addresses of names.
func (p *Provider) Route(ctx context.Context, name string, prefixes []netip.Prefix) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("route %s: %w", name, context.Cause(ctx))
	}
	rec, err := readRecord(p.layout.Sandbox(name))
	if err != nil {
		return fmt.Errorf("route %s: %w", name, err)
	}
	if info := p.info(name, rec); info.State != providers.StateActive {
		return providers.NotActive(info, "route %s: it is %s", name, info.Status())
	}
	if err := p.route(rec, prefixes); err != nil {
		return fmt.Errorf("route %s: %w", name, err)
	}
	return nil
}

func (p *Provider) route(rec *record, prefixes []netip.Prefix) error {
	if rec.Spec.Network != providers.NetworkProxy {
		return fmt.Errorf("the sandbox has another network mode: %w", providers.ErrUnsupported)
	}
	if oci.IsGVisor(cmp.Or(rec.Runtime, p.runtime.Name)) {
		return fmt.Errorf("gVisor has a network stack of its own, which has no local routes: %w", providers.ErrUnsupported)
	}
	namespace, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", rec.Init.PID))
	if err != nil {
		return err
	}
	defer func() { _ = namespace.Close() }()
	if !rec.Init.Alive() { // or another process may have had its number
		return errors.New("the sandbox has ended")
	}
	return localroute.Set(namespace, append(slices.Clone(prefixes), localroute.Names))
}

// routeNames makes the addresses of names local in a new sandbox. Without them the agent
// gives names loopback addresses.
func (p *Provider) routeNames(ctx context.Context, rec *record) {
	if err := p.route(rec, nil); err != nil && !errors.Is(err, providers.ErrUnsupported) {
		p.log.LogAttrs(ctx, slog.LevelWarn, "a sandbox has no local routes: its programs reach addresses only through the proxy",
			slog.String("container", rec.Container), slog.Any("error", err))
	}
}
