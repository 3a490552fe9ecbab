package local

import "context"

// fault gives tests a place before each step.
func (p *Provider) fault(ctx context.Context, step string) error {
	if p.config.fault == nil {
		return nil
	}
	return p.config.fault(ctx, step)
}
