package kubernetes

import (
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	shared "github.com/sandgate/sandgate/providers/internal/record"
)

// phase is the stage of a sandbox's life.
type phase string

const (
	// phaseCreating: its owner sends heartbeats. Without them the sandbox is
	// incomplete and must be deleted.
	phaseCreating phase = "creating"
	// phaseActive: the sandbox was ready once.
	phaseActive phase = "active"
	// phaseDeleting: without heartbeats, the server that finds it must finish the
	// deletion.
	phaseDeleting phase = "deleting"
)

// record is what the provider stores about a sandbox.
type record struct {
	shared.Sandbox
	Phase phase `json:"phase"`
	// Heartbeat grows while a server creates or deletes the sandbox.
	Heartbeat int64 `json:"heartbeat,omitempty"`
	// Owner identifies the current or last creation or deletion. It distinguishes
	// an own write whose answer was lost from another owner's.
	Owner string `json:"owner,omitempty"`

	// The pod, once it exists.
	Namespace string    `json:"namespace"`
	Pod       string    `json:"pod,omitempty"`
	UID       types.UID `json:"uid,omitempty"`
	// OwnNamespace is true if Namespace is the sandbox's own and is deleted with it.
	OwnNamespace bool `json:"own_namespace,omitempty"`
	FromPool     bool `json:"from_pool,omitempty"`

	Runtime      string   `json:"runtime,omitempty"`
	WritableRoot bool     `json:"writable_root,omitempty"`
	NotEnforced  []string `json:"not_enforced,omitempty"`
}

const recordKey = "record"

// decodeRecord reads the record of a ConfigMap. A sandbox with an unreadable record
// can only be deleted.
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
	cm.Labels[labelNetwork] = r.Spec.Network.String()
	cm.Annotations = map[string]string{annotationID: r.Spec.ID, annotationTenant: r.Spec.Tenant}
	return nil
}

// owner is the reference by which an object is deleted with the record.
func owner(cm *corev1.ConfigMap) []metav1.OwnerReference {
	return []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: cm.Name, UID: cm.UID}}
}
