package agentsandbox

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/json"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/sandgate/sandgate/providers"
)

// The labels and annotations of what the provider makes.
const (
	domain = "sandgate.dev"

	managedBy      = "app.kubernetes.io/managed-by"
	managedByValue = "sandgate"

	labelKind     = domain + "/kind"
	labelTenant   = domain + "/tenant"   // a hash
	labelTemplate = domain + "/template" // a hash of Sandgate's template's name
	labelPool     = domain + "/pool"     // a hash of the pool's name, on claims
	labelKept     = domain + "/kept"     // on a pool that is to have started sandboxes
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

var encoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// digest is a short name for long texts.
func digest(texts ...string) string {
	h := sha256.New()
	for _, t := range texts {
		fmt.Fprintf(h, "%d:%s", len(t), t)
	}
	return encoding.EncodeToString(h.Sum(nil))[:20]
}

func random() string {
	var b [10]byte
	rand.Read(b[:]) // never fails
	return encoding.EncodeToString(b[:])
}

// incarnation names what one agent in one container of one pod has: its
// processes and its disk.
func incarnation(pod types.UID, container string, generation int) string {
	return digest(string(pod), container, fmt.Sprint(generation))
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
		labelTenant: digest(spec.Tenant), labelTemplate: digest(spec.Template),
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
		set[labelTenant] = digest(q.Tenant)
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
	return strings.Trim("sandgate-"+slug(sandboxTemplate), "-") + "-" + digest(sandboxTemplate)[:8]
}

// keptPool is the pool of started sandboxes that fit a spec.
func keptPool(spec providers.Spec) string {
	return strings.Trim("sandgate-"+slug(spec.Template), "-") + "-" + fingerprint(spec)[:12]
}

// fingerprint is equal for specs that the same started sandbox fits.
func fingerprint(spec providers.Spec) string {
	if len(spec.Env) == 0 {
		spec.Env = nil
	}
	part := struct {
		Template, Image, Workdir string
		Resources                providers.Resources
		Network                  providers.NetworkMode
		Env                      map[string]string
		Command                  []string
		TemplateOptions, Options string
	}{
		spec.Template, spec.Image, spec.WorkingDirectory, spec.Resources, spec.Network, spec.Env, spec.Command,
		compact(spec.TemplateOptions), compact(spec.Options),
	}
	data, err := json.Marshal(part)
	if err != nil {
		// Only a type that JSON does not know could do that.
		return digest(err.Error())
	}
	return digest(string(data))
}

func compact(raw json.RawMessage) string {
	var out bytes.Buffer
	if json.Compact(&out, raw) != nil {
		return string(raw)
	}
	return out.String()
}
