package kubernetes

import (
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sandgate/sandgate/providers"
)

// phase says how far a sandbox's life has come.
type phase string

const (
	// phaseCreating: its maker keeps beating. Without a beat it is half made and
	// must go.
	phaseCreating phase = "creating"
	// phaseActive: it was ready once.
	phaseActive phase = "active"
	// phaseDeleting: without a beat, whoever finds it must finish the deletion.
	phaseDeleting phase = "deleting"
)

// record is what the provider keeps of a sandbox. The values of the environment
// are not in it.
type record struct {
	Phase phase `json:"phase"`
	Beat  int64 `json:"beat,omitempty"` // grows while somebody creates or deletes
	// Holder is who creates or deletes, or did last: it tells a write of one's own
	// whose answer was lost from another's.
	Holder       string         `json:"holder,omitempty"`
	Spec         providers.Spec `json:"spec"`
	CreateTime   time.Time      `json:"create_time"`
	LastActivity time.Time      `json:"last_activity"`

	// The pod, once it is there.
	Namespace string    `json:"namespace"`
	Pod       string    `json:"pod,omitempty"`
	UID       types.UID `json:"uid,omitempty"`
	// OwnNamespace: Namespace is the sandbox's own and goes with it.
	OwnNamespace bool `json:"own_namespace,omitempty"`
	FromPool     bool `json:"from_pool,omitempty"`

	Runtime      string   `json:"runtime,omitempty"`
	WritableRoot bool     `json:"writable_root,omitempty"`
	NotEnforced  []string `json:"not_enforced,omitempty"`
}

const recordKey = "record"

// decodeRecord reads a ConfigMap that the provider made. It returns no error
// for one that cannot be read: such a sandbox can be deleted, and nothing else.
func decodeRecord(cm *corev1.ConfigMap) (*record, error) {
	r := &record{}
	if err := json.Unmarshal([]byte(cm.Data[recordKey]), r); err != nil {
		return nil, fmt.Errorf("the record of sandbox %s cannot be read: %w", cm.Name, err)
	}
	return r, nil
}

// put writes the record into its ConfigMap.
func (r *record) put(cm *corev1.ConfigMap) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	cm.Data = map[string]string{recordKey: string(data)}
	cm.Labels = recordLabels(r.Spec.Tenant, r.Spec.Template, r.Spec.Labels)
	cm.Labels[labelPhase] = string(r.Phase)
	cm.Annotations = map[string]string{annotationID: r.Spec.ID, annotationTenant: r.Spec.Tenant}
	return nil
}

// owner makes an object go with the record.
func owner(cm *corev1.ConfigMap) []metav1.OwnerReference {
	return []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: cm.Name, UID: cm.UID}}
}

func withoutValues(spec providers.Spec) providers.Spec {
	if spec.Env != nil {
		env := make(map[string]string, len(spec.Env))
		for k := range spec.Env {
			env[k] = ""
		}
		spec.Env = env
	}
	return spec
}
