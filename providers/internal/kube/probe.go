package kube

import (
	"context"

	"k8s.io/client-go/rest"

	"github.com/sandgate/sandgate/providers"
)

// Probe reads the API server's version, which every account may do.
func Probe(ctx context.Context, client rest.Interface) (providers.Probe, error) {
	if _, err := client.Get().AbsPath("/version").DoRaw(ctx); err != nil {
		return providers.Probe{}, Wrap(ctx, "reach the cluster", err)
	}
	return providers.Probe{FreeBytes: -1}, nil
}
