package kube

import (
	"context"
	"log/slog"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/sandgate/sandgate/providers"
)

// The rate of requests to the API server, per client. The server keeps order
// among its callers by itself, so this only stops a runaway loop.
const (
	requestsPerSecond = 200
	requestBurst      = 400
)

// FromCache is the ResourceVersion of a list that the API server may answer from
// what it holds in memory, which may be some milliseconds old. Without it,
// depending on its version and etcd's, the API server reads every object of the
// namespace from etcd to find those that a selector is about.
const FromCache = "0"

// Place says which cluster to use. The zero value is what kubectl would take,
// or in a pod the cluster around it.
type Place struct {
	// Kubeconfig is a file. Empty: $KUBECONFIG, then ~/.kube/config, then the
	// service account of the pod that this process runs in.
	Kubeconfig string
	// Context is one of the kubeconfig's. Empty: its current one.
	Context string
	// Namespace is where objects are made. Empty: the context's or the pod's.
	Namespace string
}

// Load returns the configuration of clients, and the namespace. The error wraps
// providers.ErrInvalid.
func Load(place Place, logger *slog.Logger) (*rest.Config, string, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = place.Kubeconfig
	rules.WarnIfAllMissing = false
	overrides := &clientcmd.ConfigOverrides{CurrentContext: place.Context}
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides)
	config, err := loader.ClientConfig()
	if err != nil {
		return nil, "", because("the cluster's client cannot be configured: "+err.Error(), err, providers.ErrInvalid)
	}
	namespace := place.Namespace
	if namespace == "" {
		if namespace, _, err = loader.Namespace(); err != nil {
			return nil, "", because("the namespace of the cluster's client cannot be told: "+err.Error(), err, providers.ErrInvalid)
		}
	}
	config.QPS, config.Burst = requestsPerSecond, requestBurst
	// Kubernetes' own kinds are read in its binary form, which takes a fraction of
	// the processor time on both sides. So does doing without compression, which
	// saves bytes that a server beside its cluster has plenty of.
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	config.DisableCompression = true
	config.UserAgent = "sandgate"
	config.WarningHandlerWithContext = warnings{logger}
	return config, namespace, nil
}

// warnings passes the API server's warnings on to the log, not to standard
// error.
type warnings struct{ logger *slog.Logger }

func (w warnings) HandleWarningHeaderWithContext(ctx context.Context, _ int, _, text string) {
	w.logger.DebugContext(ctx, "the API server warns", "warning", text)
}
