package kubernetes

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/kube"
	"github.com/sandgate/sandgate/providers/internal/pool"
)

// Provider manages sandboxes on one cluster, with their records in one
// namespace. Several servers may share it.
type Provider struct {
	kube.Servers
	config  Config
	client  kubernetes.Interface
	exec    *kube.Executor
	version string
	// account is the server's own service account, if it is one of namespace.
	account string

	agents *kube.Agents
	pools  *pool.Controller[*corev1.Pod, *podClaim]

	policyMu   sync.Mutex
	policySeen map[providers.NetworkMode]time.Time

	verified lastVerification

	stop context.CancelCauseFunc
	work sync.WaitGroup
}

var (
	_ providers.Provider = (*Provider)(nil)
	_ providers.Pooler   = (*Provider)(nil)
	_ providers.Verifier = (*Provider)(nil)
)

// New connects to the cluster. The error wraps ErrInvalid when the cluster is
// not configured, ErrUnavailable when it does not answer or does not know this
// server's credentials, and ErrForbidden when they do not suffice.
func New(ctx context.Context, config Config) (*Provider, error) {
	config, err := config.withDefaults()
	if err != nil {
		return nil, err
	}
	place := kube.Cluster{Kubeconfig: config.Kubeconfig, Context: config.Context, Namespace: config.Namespace}
	rest, namespace, err := kube.Load(place, config.Logger)
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(rest)
	if err != nil {
		return nil, fmt.Errorf("client of the cluster: %w: %w", err, providers.ErrInvalid)
	}
	p := &Provider{
		Servers: kube.Servers{Core: client.CoreV1(), Namespace: namespace, Prefix: leasePrefix, Log: config.Logger},
		config:  config, client: client,
		exec: kube.NewExecutor(rest, client.CoreV1().RESTClient()),
	}
	version, err := client.Discovery().ServerVersion()
	if err != nil {
		return nil, kube.Wrap(ctx, "reach the cluster at "+rest.Host, err)
	}
	p.version = version.GitVersion
	p.account = p.whoAmI(ctx)
	if p.Leases, err = kube.NewLeases(rest); err != nil {
		return nil, fmt.Errorf("client of the cluster's leases: %w: %w", err, providers.ErrInvalid)
	}
	if err := p.ReaperLease().Check(ctx); err != nil {
		return nil, err
	}
	p.config.Transport, err = config.Transport.Resolve(ctx, rest, client.AuthorizationV1(), namespace, []string{"get"}, config.Logger)
	if err != nil {
		return nil, err
	}
	p.agents = kube.NewAgents(p.exec, p.config.Transport, config.Logger)
	p.pools = p.newPools()
	if p.config.VerifyNetwork > 0 {
		p.recallVerification(ctx)
	}
	background, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	p.stop = stop
	p.work.Go(func() { p.Lease(sweeperLease).Lead(background, p.lookAfter) })
	if p.config.VerifyNetwork > 0 {
		p.work.Go(func() { p.followVerifications(background) })
	}
	if p.config.Transport.Listens() {
		p.work.Go(func() { p.keepPolicy(background) })
	}
	return p, nil
}

// lookAfter does what one of the servers that share the namespace does, until ctx ends.
func (p *Provider) lookAfter(ctx context.Context) {
	var work sync.WaitGroup
	defer work.Wait()
	if p.config.VerifyNetwork > 0 {
		work.Go(func() { p.keepVerified(ctx) })
	}
	p.sweep(ctx)
}

// Close leaves the sandboxes running.
func (p *Provider) Close() error {
	p.pools.Close()
	p.stop(errClosed)
	p.work.Wait()
	p.exec.Close()
	p.agents.Close()
	return nil
}

var errClosed = fmt.Errorf("the provider was closed: %w", providers.ErrUnavailable)

// The leases of servers that share the namespace.
const (
	leasePrefix  = "sandgate-kubernetes"
	sweeperLease = leasePrefix + "-sweeper"
)

func (p *Provider) records() corev1client.ConfigMapInterface {
	return p.Core.ConfigMaps(p.Namespace)
}

func (p *Provider) pods(namespace string) corev1client.PodInterface {
	return p.Core.Pods(namespace)
}

func (p *Provider) recordObject(name string) kube.Object[*corev1.ConfigMap] {
	return kube.Object[*corev1.ConfigMap]{Name: name, Get: p.records().Get, Watch: p.records().Watch}
}

func (p *Provider) podObject(namespace, name string) kube.Object[*corev1.Pod] {
	return kube.Object[*corev1.Pod]{Name: name, Get: p.pods(namespace).Get, Watch: p.pods(namespace).Watch}
}
