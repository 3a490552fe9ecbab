package agentsandbox

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

const (
	coreGroup       = "agents.x-k8s.io"
	extensionsGroup = "extensions.agents.x-k8s.io"
	apiVersion      = "v1beta1"
)

var (
	claimsResource    = schema.GroupVersionResource{Group: extensionsGroup, Version: apiVersion, Resource: "sandboxclaims"}
	poolsResource     = schema.GroupVersionResource{Group: extensionsGroup, Version: apiVersion, Resource: "sandboxwarmpools"}
	templatesResource = schema.GroupVersionResource{Group: extensionsGroup, Version: apiVersion, Resource: "sandboxtemplates"}
	sandboxesResource = schema.GroupVersionResource{Group: coreGroup, Version: apiVersion, Resource: "sandboxes"}
)

// What the controller writes on its objects.
const (
	poolHashLabel     = coreGroup + "/warm-pool-sandbox"         // on an unclaimed pod
	templateHashLabel = coreGroup + "/sandbox-template-ref-hash" // on every pod of a SandboxTemplate
	nameHashLabel     = coreGroup + "/sandbox-name-hash"         // on every pod of a Sandbox

	chosenAnnotation = coreGroup + "/sandbox-name" // on a claim: what it is about to be given of a pool's

	conditionReady    = "Ready"
	conditionFinished = "Finished"

	reasonSuspended    = "SandboxSuspended"
	reasonNoPool       = "WarmPoolNotFound"
	reasonNoTemplate   = "TemplateNotFound"
	reasonMetadata     = "InvalidMetadata"
	reasonEnv          = "EnvVarsInjectionRejected"
	reasonVolumes      = "VolumeClaimTemplatesError"
	reasonClaimExpired = "ClaimExpired"
	reasonExpired      = "SandboxExpired"
	reasonPodFailed    = "PodFailed"
	reasonPodSucceeded = "PodSucceeded"
	reasonSeveralPods  = "MultiplePods"
	policyForeground   = "DeleteForeground"
	modeRunning        = "Running"
	modeSuspended      = "Suspended"
)

type claim struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec   claimSpec   `json:"spec"`
	Status claimStatus `json:"status,omitzero"`
}

type claimSpec struct {
	WarmPoolRef           reference         `json:"warmPoolRef"`
	Lifecycle             *lifecycle        `json:"lifecycle,omitempty"`
	AdditionalPodMetadata podMetadata       `json:"additionalPodMetadata,omitzero"`
	Env                   []envVar          `json:"env,omitempty"`
	VolumeClaimTemplates  []volumeClaimSpec `json:"volumeClaimTemplates,omitempty"`
}

type reference struct {
	Name string `json:"name"`
}

type lifecycle struct {
	ShutdownTime            *metav1.Time `json:"shutdownTime,omitempty"`
	TTLSecondsAfterFinished *int32       `json:"ttlSecondsAfterFinished,omitempty"`
	ShutdownPolicy          string       `json:"shutdownPolicy,omitempty"`
}

type podMetadata struct {
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type envVar struct {
	Name          string `json:"name"`
	Value         string `json:"value"`
	ContainerName string `json:"containerName,omitempty"`
}

type volumeClaimSpec struct {
	Metadata volumeClaimName                  `json:"metadata"`
	Spec     corev1.PersistentVolumeClaimSpec `json:"spec"`
}

type volumeClaimName struct {
	Name string `json:"name"`
}

type claimStatus struct {
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	Sandbox    reference          `json:"sandbox,omitzero"`
}

type sandbox struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec struct {
		OperatingMode string `json:"operatingMode,omitempty"`
	} `json:"spec"`
	Status struct {
		Conditions []metav1.Condition `json:"conditions,omitempty"`
	} `json:"status,omitzero"`
}

func (s *sandbox) mode() string {
	if s.Spec.OperatingMode == "" {
		return modeRunning
	}
	return s.Spec.OperatingMode
}

type warmPool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec struct {
		Replicas           *int32    `json:"replicas,omitempty"`
		SandboxTemplateRef reference `json:"sandboxTemplateRef"`
	} `json:"spec"`
	Status struct {
		Replicas      int32  `json:"replicas,omitempty"`
		ReadyReplicas int32  `json:"readyReplicas,omitempty"`
		Selector      string `json:"selector,omitempty"`
	} `json:"status,omitzero"`
}

// template is only asked for whether it is there.
type template struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
}

// condition finds a condition by its type.
func condition(all []metav1.Condition, kind string) *metav1.Condition {
	for i := range all {
		if all[i].Type == kind {
			return &all[i]
		}
	}
	return nil
}

func holds(c *metav1.Condition) bool { return c != nil && c.Status == metav1.ConditionTrue }
