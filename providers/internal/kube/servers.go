package kube

import (
	"context"
	"log/slog"

	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/sandgate/sandgate/providers"
)

// Servers is what the servers that share a namespace share in it besides sandboxes. A
// provider embeds it.
type Servers struct {
	Leases    coordinationv1.LeasesGetter
	Core      corev1client.CoreV1Interface
	Namespace string
	// Prefix begins the names of the servers' leases.
	Prefix string
	Log    *slog.Logger
}

var (
	_ providers.Coordinator = Servers{}
	_ providers.Membership  = Servers{}
	_ providers.Ledger      = Servers{}
	_ providers.Prober      = Servers{}
)

// Lease returns the lease of a name.
func (s Servers) Lease(name string) Lease {
	return Lease{Leases: s.Leases, Namespace: s.Namespace, Name: name, Log: s.Log}
}

// ReaperLease is the lease of those that reap.
func (s Servers) ReaperLease() Lease { return s.Lease(s.Prefix + "-reaper") }

// Lead implements providers.Coordinator: it calls do while this server holds the lease of
// those that reap.
func (s Servers) Lead(ctx context.Context, do func(context.Context)) { s.ReaperLease().Lead(ctx, do) }

// Lapses implements providers.Coordinator: a lease that is not renewed ends.
func (Servers) Lapses() bool { return true }

// Join implements providers.Membership: it makes this server one of those that share the
// namespace.
func (s Servers) Join(ctx context.Context, changed func(self string, live []string)) {
	Members{Leases: s.Leases, Namespace: s.Namespace, Name: s.Prefix + "-servers", Log: s.Log}.Join(ctx, changed)
}

// ChangeLedger implements providers.Ledger. A ConfigMap holds each document.
func (s Servers) ChangeLedger(ctx context.Context, name string, change func([]byte) ([]byte, error)) error {
	return changeLedger(ctx, s.Core.ConfigMaps(s.Namespace), name, change)
}

// Probe implements providers.Prober. It reads the API server's version, which every
// account may do.
func (s Servers) Probe(ctx context.Context) (providers.Probe, error) {
	result := providers.Probe{FreeBytes: -1}
	if _, err := s.Core.RESTClient().Get().AbsPath("/version").DoRaw(ctx); err != nil {
		return result, Wrap(ctx, "reach the cluster", err)
	}
	return result, nil
}
