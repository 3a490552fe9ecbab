package kube

import (
	"context"

	"k8s.io/client-go/rest"

	"github.com/sandgate/sandgate/providers"
)

// Probe reads the API server's version, which every account may do.
func Probe(ctx context.Context, client rest.Interface) (providers.Probe, error) {
	result := providers.Probe{FreeBytes: -1}
	if _, err := client.Get().AbsPath("/version").DoRaw(ctx); err != nil {
		return result, Wrap(ctx, "reach the cluster", err)
	}
	return result, nil
}
