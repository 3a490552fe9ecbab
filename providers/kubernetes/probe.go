package kubernetes

import (
	"context"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/kube"
)

var _ providers.Prober = (*Provider)(nil)

// Probe asks whether the API server answers.
func (p *Provider) Probe(ctx context.Context) (providers.Probe, error) {
	return kube.Probe(ctx, p.client.CoreV1().RESTClient())
}
