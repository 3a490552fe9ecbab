package kube

import (
	"context"

	"k8s.io/client-go/rest"

	"github.com/sandgate/sandgate/providers"
)

// Probe asks the API server for its version, which every account may.
func Probe(ctx context.Context, client rest.Interface) (providers.Probe, error) {
	if _, err := client.Get().AbsPath("/version").DoRaw(ctx); err != nil {
		return providers.Probe{}, Wrap(ctx, "reach the cluster", err)
	}
	return providers.Probe{FreeBytes: -1}, nil
}
