package kube

import (
	"context"
	"log/slog"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/sandgate/sandgate/providers"
)

// The rate of requests to the API server, per client. The API server limits its
// callers itself, so this only stops a runaway loop.
const (
	requestsPerSecond = 200
	requestBurst      = 400
)

// FromCache is the ResourceVersion of a list that the API server may answer from
// its memory, which may be some milliseconds old. Without it, some versions of
// API server and etcd read every object of the namespace from etcd to evaluate a
// selector.
const FromCache = "0"

// Cluster selects a cluster and a namespace. The zero value selects those that
// kubectl would use, or in a pod the cluster around it.
type Cluster struct {
	// Kubeconfig is a file. Empty: $KUBECONFIG, then ~/.kube/config, then the
	// service account of the pod that this process runs in.
	Kubeconfig string
	// Context is a context of the kubeconfig. Empty: its current one.
	Context string
	// Namespace is where objects are created. Empty: the context's or the pod's.
	Namespace string
}

// Load returns the configuration of clients, and the namespace. The error wraps
// providers.ErrInvalid.
func Load(cluster Cluster, logger *slog.Logger) (*rest.Config, string, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = cluster.Kubeconfig
	rules.WarnIfAllMissing = false
	overrides := &clientcmd.ConfigOverrides{CurrentContext: cluster.Context}
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides)
	config, err := loader.ClientConfig()
	if err != nil {
		return nil, "", withMessage("the cluster's client cannot be configured: "+err.Error(), err, providers.ErrInvalid)
	}
	namespace := cluster.Namespace
	if namespace == "" {
		if namespace, _, err = loader.Namespace(); err != nil {
			return nil, "", withMessage("the namespace of the cluster's client cannot be determined: "+err.Error(), err, providers.ErrInvalid)
		}
	}
	config.QPS, config.Burst = requestsPerSecond, requestBurst
	// Protobuf takes a fraction of JSON's processor time on both sides. So does
	// doing without compression: bandwidth is plentiful near the cluster.
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	config.DisableCompression = true
	config.UserAgent = "sandgate"
	config.WarningHandlerWithContext = warnings{logger}
	return config, namespace, nil
}

// warnings sends the API server's warnings to the log instead of standard error.
type warnings struct{ logger *slog.Logger }

func (w warnings) HandleWarningHeaderWithContext(ctx context.Context, _ int, _, text string) {
	w.logger.DebugContext(ctx, "the API server warns", "warning", text)
}
