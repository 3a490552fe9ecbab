package agentsandbox

import (
	"context"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/kube"
)

var _ providers.Ledger = (*Provider)(nil)

// ChangeLedger implements providers.Ledger. A ConfigMap holds each document.
func (p *Provider) ChangeLedger(ctx context.Context, name string, change func([]byte) ([]byte, error)) error {
	return kube.ChangeLedger(ctx, p.core.ConfigMaps(p.namespace), name, change)
}
