package kubernetes

import (
	"strings"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/sandgate/sandgate/providers"
	shared "github.com/sandgate/sandgate/providers/internal/record"
)

// The labels and annotations of what the provider makes.
const (
	domain = "sandgate.dev"

	managedBy      = "app.kubernetes.io/managed-by"
	managedByValue = "sandgate"

	labelKind     = domain + "/kind"
	labelPhase    = domain + "/phase"    // of a record
	labelName     = domain + "/name"     // the sandbox's name
	labelTenant   = domain + "/tenant"   // a hash
	labelTemplate = domain + "/template" // the template's name
	labelPool     = domain + "/pool"     // a hash of what the pool's sandboxes are made from
	labelUse      = domain + "/use"      // of a pool's pod
	labelNetwork  = domain + "/network"
	labelPrefix   = "label." + domain + "/" // before a caller's label

	annotationID     = domain + "/id"
	annotationTenant = domain + "/tenant"
	annotationRecord = domain + "/record" // the UID of the record that a namespace belongs to
)

// The kinds of what the provider makes.
const (
	kindSandbox = "sandbox"
	kindPool    = "pool"
	// kindVerifier is that of pods that verify the network policy.
	kindVerifier = "verifier"
)

// The uses of a pool's pod.
const (
	useStarting = "starting"
	useReady    = "ready"
	useClaimed  = "claimed"
)

// callerLabel is a caller's label as the cluster can hold it; not every one can.
func callerLabel(key, value string) (k, v string, ok bool) {
	k = labelPrefix + key
	return k, value, len(validation.IsQualifiedName(k)) == 0 && len(validation.IsValidLabelValue(value)) == 0
}

func recordLabels(tenant, template string, callers map[string]string) map[string]string {
	out := map[string]string{managedBy: managedByValue, labelKind: kindSandbox, labelTenant: shared.Digest(tenant)}
	if len(validation.IsValidLabelValue(template)) == 0 {
		out[labelTemplate] = template
	}
	for k, v := range callers {
		if k, v, ok := callerLabel(k, v); ok {
			out[k] = v
		}
	}
	return out
}

// recordSelector narrows a list as far as labels can.
func recordSelector(tenant string, network providers.NetworkMode, callers map[string]string) string {
	set := labels.Set{managedBy: managedByValue, labelKind: kindSandbox}
	if tenant != "" {
		set[labelTenant] = shared.Digest(tenant)
	}
	if network == providers.NetworkProxy { // the records of others may be older than the label
		set[labelNetwork] = network.String()
	}
	for k, v := range callers {
		if k, v, ok := callerLabel(k, v); ok {
			set[k] = v
		}
	}
	return set.String()
}

// podLabels are the labels of a pod that belongs to a sandbox.
func podLabels(name, tenant, template string, callers map[string]string) map[string]string {
	out := recordLabels(tenant, template, callers)
	out[labelName] = name
	return out
}

// escaped keeps Kubernetes from expanding $(NAME) in an argument.
func escaped(arg string) string { return strings.ReplaceAll(arg, "$", "$$") }
