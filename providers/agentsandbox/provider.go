package agentsandbox

import (
	"context"
	"errors"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	networkingv1client "k8s.io/client-go/kubernetes/typed/networking/v1"
	"k8s.io/client-go/metadata"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/kube"
)

// Provider runs sandboxes through agent-sandbox.
type Provider struct {
	kube.Servers
	config Config

	claims kind[claim]
	// claimsMeta shows the claims' metadata only.
	claimsMeta metadata.ResourceInterface
	sandboxes  kind[sandbox]
	pools      kind[warmPool]
	templates  kind[template]

	networking networkingv1client.NetworkPoliciesGetter
	policies   policyCache

	executor *kube.Executor
	agents   *kube.Agents
	injector *kube.Injector
	known    sync.Map // names of cold pools, and of operators', that are there

	// life ends with Close.
	end          context.CancelCauseFunc
	poolInjector *poolInjector
}

var (
	_ providers.Provider    = (*Provider)(nil)
	_ providers.Suspender   = (*Provider)(nil)
	_ providers.Pooler      = (*Provider)(nil)
	_ providers.EndReporter = (*Provider)(nil)
)

// New connects to the cluster and makes sure that it has agent-sandbox's
// v1beta1 API. The error wraps providers.ErrUnsupported when it has not.
func New(ctx context.Context, config Config) (*Provider, error) {
	config, err := config.withDefaults()
	if err != nil {
		return nil, err
	}
	rest, namespace, err := kube.Load(kube.Cluster{
		Kubeconfig: config.Kubeconfig, Context: config.Context, Namespace: config.Namespace,
	}, config.Logger)
	if err != nil {
		return nil, err
	}
	set, err := kubernetes.NewForConfig(rest)
	if err != nil {
		return nil, err
	}
	dyn, err := dynamic.NewForConfig(rest)
	if err != nil {
		return nil, err
	}
	leases, err := kube.NewLeases(rest)
	if err != nil {
		return nil, err
	}
	meta, err := metadata.NewForConfig(rest)
	if err != nil {
		return nil, err
	}
	config.Transport, err = config.Transport.Resolve(ctx, rest, set.AuthorizationV1(), namespace, []string{"get", "create"}, config.Logger)
	if err != nil {
		return nil, err
	}
	life, end := context.WithCancelCause(context.WithoutCancel(ctx))
	p := &Provider{
		Servers:    kube.Servers{Leases: leases, Core: set.CoreV1(), Namespace: namespace, Prefix: leasePrefix, Log: config.Logger},
		config:     config,
		claims:     newKind[claim](dyn, claimsResource, namespace, "SandboxClaim"),
		claimsMeta: meta.Resource(claimsResource).Namespace(namespace),
		sandboxes:  newKind[sandbox](dyn, sandboxesResource, namespace, "Sandbox"),
		pools:      newKind[warmPool](dyn, poolsResource, namespace, "SandboxWarmPool"),
		templates:  newKind[template](dyn, templatesResource, namespace, "SandboxTemplate"),
		networking: set.NetworkingV1(),
		executor:   kube.NewExecutor(rest, set.CoreV1().RESTClient()),
		injector:   &kube.Injector{Agent: config.Agent},
		end:        end,
	}
	p.agents = kube.NewAgents(p.executor, p.config.Transport, config.Logger)
	p.poolInjector = newPoolInjector(life, p)
	if err := p.checkAPI(ctx); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// checkAPI returns an error if later calls would fail.
func (p *Provider) checkAPI(ctx context.Context) error {
	_, _, err := p.claims.list(ctx, metav1.ListOptions{Limit: 1})
	switch {
	case err == nil:
		return p.ReaperLease().Check(ctx)
	case apierrors.IsNotFound(err):
		return fmt.Errorf("the cluster has no SandboxClaim of %s: install agent-sandbox v0.5 or later with its extensions: %w", claimsResource.GroupVersion(), providers.ErrUnsupported)
	default:
		return kube.Wrap(ctx, "list the SandboxClaims of namespace "+p.Namespace, err)
	}
}

// The leases of servers that share the namespace.
const (
	leasePrefix   = "sandgate-agentsandbox"
	injectorLease = leasePrefix + "-injector"
)

var errClosed = errors.New("the provider was closed")

// Close leaves the sandboxes running, and the pools as they are.
func (p *Provider) Close() error {
	p.end(errClosed)
	p.poolInjector.wait()
	p.executor.Close()
	p.agents.Close()
	return nil
}

// Describe reports the protections. The pods' specs and the network are the
// operator's; what each sandbox really has is in its Info.
func (p *Provider) Describe(context.Context) (providers.Description, error) {
	operators := func(name, detail string) providers.Enforcement {
		return providers.Enforcement{Name: name, Detail: detail}
	}
	return providers.Description{
		Name: "agentsandbox", Runtime: "agent-sandbox " + apiVersion,
		Capabilities: []string{"volumes", providers.CapabilityNetworkProxy},
		Enforcement: []providers.Enforcement{
			operators("memory", "each SandboxTemplate's limit"),
			operators("cpu", "each SandboxTemplate's limit"),
			operators("processes", "the kubelet's podPidsLimit, which no API reports"),
			operators("disk", "each SandboxTemplate's limit of ephemeral storage, by eviction"),
			operators("network", "each SandboxTemplate's network policy, as far as the cluster's network enforces it; proxy needs pods whose NetworkPolicies deny all egress, and there "+providers.AddressesNeedProxy+", as do names where GetSandbox lists them"),
			operators("unprivileged", "each SandboxTemplate's security context"),
			operators("seccomp", "each SandboxTemplate's security context"),
			operators("kill_tree", "the agent is given no cgroup; it sweeps its descendants"),
			operators("write_prefixes", "the node's kernel decides: where it has no Landlock, they bind file calls only, and the message of each command's end reports it"),
		},
	}, nil
}

// podObject is one pod, to be followed.
func (p *Provider) podObject(name string) kube.Object[*corev1.Pod] {
	pods := p.Core.Pods(p.Namespace)
	return kube.Object[*corev1.Pod]{Name: name, Get: pods.Get, Watch: pods.Watch}
}
