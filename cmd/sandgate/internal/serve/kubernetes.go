package serve

import (
	"context"
	"log/slog"
	"os"

	"github.com/spf13/pflag"
	"k8s.io/klog/v2"

	"github.com/sandgate/sandgate/cmd/sandgate/agentbin"
	"github.com/sandgate/sandgate/providers/kubernetes"
)

// kubernetesFlags are those of the providers on Kubernetes.
type kubernetesFlags struct {
	kubeconfig, context, namespace string
	image, agentImage              string
	networkPolicies                bool
	podPidsLimit                   int64
	transport                      string
	agentPort                      int32
	agentFrom                      []string
}

func (k *kubernetesFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&k.kubeconfig, "kubernetes-kubeconfig", "", "kubeconfig file of the cluster (default $KUBECONFIG, ~/.kube/config, or in a pod the cluster around it)")
	flags.StringVar(&k.context, "kubernetes-context", "", "context of the kubeconfig (default its current one)")
	flags.StringVar(&k.namespace, "kubernetes-namespace", "", "namespace of sandboxes (default the context's, or the pod's)")
	flags.StringVar(&k.image, "kubernetes-image", kubernetes.DefaultImage, "image of sandboxes for which none is named")
	flags.StringVar(&k.agentImage, "kubernetes-agent-image", "", "image with the agent at /sandgate-agent, to bring it into sandboxes; without it images need a shell")
	flags.BoolVar(&k.networkPolicies, "kubernetes-network-policies", false, "state that the cluster's network enforces NetworkPolicy")
	flags.Int64Var(&k.podPidsLimit, "kubernetes-pod-pids-limit", 0, "state the kubelets' podPidsLimit (default unknown)")
	flags.StringVar(&k.transport, "kubernetes-transport", string(kubernetes.TransportAuto), "how agents are reached: pod-ip, at their pods' addresses; exec, through the API server; auto, by pod-ip in a cluster where it works, else by exec")
	flags.Int32Var(&k.agentPort, "kubernetes-agent-port", 7778, "port where agents listen, unless they are reached by exec")
	flags.StringArrayVar(&k.agentFrom, "kubernetes-agent-from", nil, "who may connect to that port of sandboxes without network, the servers: NAMESPACE/LABEL=VALUE,… or a range of addresses; can be repeated (default nobody)")
}

func newKubernetes(ctx context.Context, f serveFlags, logger *slog.Logger) (*kubernetes.Provider, error) {
	quietClientGo(logger)
	k := f.kubernetes
	return kubernetes.New(ctx, kubernetes.Config{
		Kubeconfig: k.kubeconfig, Context: k.context, Namespace: k.namespace, Image: k.image, AgentImage: k.agentImage,
		Agent: agentOf(f), NetworkPolicies: k.networkPolicies, PodPidsLimit: k.podPidsLimit,
		Transport: kubernetes.Transport(k.transport), AgentPort: k.agentPort, AgentFrom: k.agentFrom, Logger: logger,
	})
}

// agentOf is where the agent's executables come from.
func agentOf(f serveFlags) func(arch string) ([]byte, error) {
	if f.agent == "" {
		return agentbin.Read
	}
	return func(string) ([]byte, error) { return os.ReadFile(f.agent) }
}

// quietClientGo takes the cluster client's own log, which tells of every broken
// stream as an error, to the debug level of the server's.
func quietClientGo(logger *slog.Logger) {
	klog.SetSlogLogger(slog.New(demoted{logger.Handler()}))
}

// demoted handles every record as one for debugging.
type demoted struct{ slog.Handler }

func (d demoted) Enabled(ctx context.Context, _ slog.Level) bool {
	return d.Handler.Enabled(ctx, slog.LevelDebug)
}

// Handle asks again: klog hands over its errors without having asked.
func (d demoted) Handle(ctx context.Context, r slog.Record) error {
	if !d.Enabled(ctx, r.Level) {
		return nil
	}
	r.Level = slog.LevelDebug
	return d.Handler.Handle(ctx, r)
}

func (d demoted) WithAttrs(attrs []slog.Attr) slog.Handler {
	return demoted{d.Handler.WithAttrs(attrs)}
}
func (d demoted) WithGroup(name string) slog.Handler { return demoted{d.Handler.WithGroup(name)} }
