package agentsandbox

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/pool"
	shared "github.com/sandgate/sandgate/providers/internal/record"
)

// The labels and annotations of what the provider makes.
const (
	domain = "sandgate.dev"

	managedBy      = "app.kubernetes.io/managed-by"
	managedByValue = "sandgate"

	labelKind     = domain + "/kind"
	labelTenant   = domain + "/tenant"   // a hash
	labelTemplate = domain + "/template" // a hash of Sandgate's template's name
	labelNetwork  = domain + "/network"
	labelPool     = domain + "/pool" // a hash of the pool's name, on claims
	labelKept     = domain + "/kept" // on a pool that is to have started sandboxes
	labelPrefix   = "label." + domain + "/"

	annotationRecord   = domain + "/record"
	annotationCreation = domain + "/creation" // whose Create it was
	annotationSeen     = domain + "/incarnation"
	annotationAgent    = domain + "/agent" // on pods
	annotationAdopted  = domain + "/adopted-by"
	annotationTemplate = domain + "/template"
	// annotationFormer is a hash of the tenant that adopted an object first. It stays
	// when the sandbox is deleted, as that tenant's files do.
	annotationFormer = domain + "/adopted-by-tenant"
)

// The kinds of what the provider makes.
const (
	kindSandbox = "sandbox"
	kindPool    = "pool"
	kindAdopted = "adopted"
)

// incarnation names what one agent in one container of one pod has: its
// processes and its disk.
func incarnation(pod types.UID, container string, generation int) string {
	return shared.Digest(string(pod), container, fmt.Sprint(generation))
}

// callerLabel is a caller's label as the cluster can hold it; not every one can.
func callerLabel(key, value string) (k string, ok bool) {
	k = labelPrefix + key
	return k, len(validation.IsQualifiedName(k)) == 0 && len(validation.IsValidLabelValue(value)) == 0
}

// recordLabels are the labels of the object that stands for a sandbox.
func recordLabels(kind string, spec providers.Spec) map[string]string {
	out := map[string]string{
		managedBy: managedByValue, labelKind: kind,
		labelTenant: shared.Digest(spec.Tenant), labelTemplate: shared.Digest(spec.Template),
		labelNetwork: spec.Network.String(),
	}
	for k, v := range spec.Labels {
		if k, ok := callerLabel(k, v); ok {
			out[k] = v
		}
	}
	return out
}

// recordSelector narrows a list as far as labels can.
func recordSelector(kind string, q providers.Query) string {
	set := labels.Set{managedBy: managedByValue, labelKind: kind}
	if q.Tenant != "" {
		set[labelTenant] = shared.Digest(q.Tenant)
	}
	if q.Network == providers.NetworkProxy { // objects with another mode may be older than the label
		set[labelNetwork] = q.Network.String()
	}
	for k, v := range q.Labels {
		if k, ok := callerLabel(k, v); ok {
			set[k] = v
		}
	}
	return set.String()
}

// slug makes the readable part of a name.
func slug(s string) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		default:
			return '-'
		}
	}, s)
	if len(s) > 24 {
		s = s[:24]
	}
	return strings.Trim(s, "-")
}

// coldPool is the pool without started sandboxes for a SandboxTemplate.
func coldPool(sandboxTemplate string) string {
	return strings.Trim("sandgate-"+slug(sandboxTemplate), "-") + "-" + shared.Digest(sandboxTemplate)[:8]
}

// keptPool is the pool of started sandboxes that fit a spec.
func keptPool(spec providers.Spec) string {
	return strings.Trim("sandgate-"+slug(spec.Template), "-") + "-" + pool.Fingerprint(spec)[:12]
}
