package kubernetes

import (
	"context"
	"encoding/json"
	"net"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/kube"
	"github.com/sandgate/sandgate/providers/internal/pool"
	shared "github.com/sandgate/sandgate/providers/internal/record"
)

// poolKey identifies all that a pod is made from, but for what a claim can still
// give it. Pods with the same key are interchangeable.
func (p *Provider) poolKey(spec providers.Spec) (string, error) {
	o, err := decodeOptions(spec)
	if err != nil {
		return "", err
	}
	spec.Resources = withLimits(spec.Resources)
	return (&plan{config: &p.config, spec: spec, options: o}).poolKey(), nil
}

func (pl *plan) poolKey() string {
	data, err := json.Marshal(struct {
		Spec       providers.Spec
		Options    options
		AgentImage string
		Image      string
		AgentPort  int32 `json:",omitempty"`
	}{pool.Fixed(pl.spec), pl.options, pl.config.AgentImage, pl.image(), pl.port()})
	if err != nil {
		return shared.Random() // nothing in it can fail; without a key nothing is shared
	}
	return shared.Digest(string(data))
}

// podClaim is what a creation wants from a pool.
type podClaim struct {
	name  string
	plan  *plan
	owner *ownership
}

// claim gives a started pod to the sandbox, if there is one, and returns a
// connection to its agent. Both are nil when there is none.
func (p *Provider) claim(ctx context.Context, name string, pl *plan, h *ownership) (net.Conn, error) {
	if err := p.prepareNetwork(ctx, pl, p.Namespace); err != nil {
		return nil, err
	}
	return p.pools.Claim(ctx, pl.spec, &podClaim{name: name, plan: pl, owner: h})
}

// usable reports whether a pod still runs.
func usable(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && kube.Ended(pod, containerName) == nil && running(pod.Status.ContainerStatuses, containerName)
}

type patch struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

func labelPath(key string) string {
	return "/metadata/labels/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(key)
}

// take makes a pool's pod the sandbox's, if nobody else was faster: the patch
// holds only as long as the pod is ready and unclaimed. The answer is waited
// for.
func (p *Provider) take(ctx context.Context, name string, pl *plan, pod *corev1.Pod, cm *corev1.ConfigMap) (won bool, err error) {
	patches := []patch{
		{"test", labelPath(labelUse), useReady},
		{"replace", labelPath(labelUse), useClaimed},
		{"add", "/metadata/ownerReferences", owner(cm)},
	}
	for k, v := range podLabels(name, pl.spec.Tenant, pl.spec.Template, pl.spec.Labels) {
		patches = append(patches, patch{"add", labelPath(k), v})
	}
	data, err := json.Marshal(patches)
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
	defer cancel()
	_, err = p.pods(pod.Namespace).Patch(ctx, pod.Name, types.JSONPatchType, data, metav1.PatchOptions{})
	if apierrors.IsInvalid(err) || apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil, kube.Wrap(ctx, "claim a pool's pod", err)
}

// markReady makes a pool's pod one that can be claimed.
func (p *Provider) markReady(ctx context.Context, pod *corev1.Pod) error {
	data, err := json.Marshal([]patch{{"test", labelPath(labelUse), useStarting}, {"replace", labelPath(labelUse), useReady}})
	if err != nil {
		return err
	}
	_, err = p.pods(pod.Namespace).Patch(ctx, pod.Name, types.JSONPatchType, data, metav1.PatchOptions{})
	return kube.Wrap(ctx, "mark a pool's pod as ready", err)
}
