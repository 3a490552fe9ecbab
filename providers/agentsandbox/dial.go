package agentsandbox

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/sandgate/sandgate/providers"
)

// Dial connects to the agent inside. A container that was started since has
// none; there the agent is put in again.
func (p *Provider) Dial(ctx context.Context, name string) (net.Conn, error) {
	if ctx.Err() != nil {
		return nil, fmt.Errorf("dial %s: %w", name, context.Cause(ctx))
	}
	s, err := p.find(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("dial: %w", err)
	}
	pod, err := p.pod(ctx, s)
	if err != nil {
		return nil, fmt.Errorf("dial: %w", err)
	}
	switch info := s.info(pod); info.State {
	case providers.StateActive:
	case providers.StateCreating:
		// It will be there, or will have failed, by itself.
		return nil, fmt.Errorf("dial %s: it is not ready: %s: %w", name, info.Message, providers.ErrUnavailable)
	default:
		return nil, providers.NotActive(info, "dial %s: it is %s", name, info.Status())
	}
	at, err := s.agentContainer(pod)
	if errors.Is(err, errNotRunning) {
		return nil, fmt.Errorf("dial %s: %w: %w", name, err, providers.ErrUnavailable)
	}
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", name, err)
	}
	conn, _, err := p.connect(ctx, at)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", name, err)
	}
	return conn, nil
}
