package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/sandgate/sandgate/providers"
)

// Dial connects to the agent by the provider's transport and returns when the agent
// has answered.
func (p *Provider) Dial(ctx context.Context, name string) (net.Conn, error) {
	if ctx.Err() != nil {
		return nil, fmt.Errorf("dial %s: %w", name, context.Cause(ctx))
	}
	_, rec, err := p.read(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("dial: %w", err)
	}
	if rec.Phase != phaseActive {
		return nil, providers.NotActive(p.infoOf(name, rec), "dial %s: it is %s", name, rec.Phase)
	}
	conn, err := p.openRecorded(ctx, rec)
	if err == nil {
		return conn, nil
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("dial %s: %w", name, errors.Join(context.Cause(ctx), err))
	}
	// Only a failure justifies a read of the pod.
	info, lost := p.info(ctx, name, rec)
	switch {
	case lost != nil:
		return nil, fmt.Errorf("dial %s: %w", name, lost)
	case info.State != providers.StateActive:
		return nil, providers.NotActive(info, "dial %s: it is %s", name, info.Status())
	case errors.Is(err, providers.ErrForbidden):
		return nil, fmt.Errorf("dial %s: %w", name, err)
	default:
		return nil, fmt.Errorf("dial %s: %w: %w", name, providers.ErrUnavailable, err)
	}
}
