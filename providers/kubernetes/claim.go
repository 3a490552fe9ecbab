package kubernetes

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/kube"
)

// poolKey identifies all that a pod is made from, but for what a claim can still
// give it. Pods with the same key are interchangeable.
func (pl *plan) poolKey() string {
	s := pl.spec
	s.Tenant, s.ID, s.Hash, s.Labels, s.TTL, s.IdleTTL, s.Access = "", "", "", nil, 0, 0, nil
	data, err := json.Marshal(struct {
		Spec       providers.Spec
		Options    options
		AgentImage string
		Image      string
		AgentPort  int32 `json:",omitempty"`
	}{s, pl.options, pl.config.AgentImage, pl.image(), pl.port()})
	if err != nil {
		// Nothing in it can fail to be written; without a key nothing is shared.
		return random()
	}
	return digest(string(data))
}

// claim gives a started pod to the sandbox, if there is one, and returns a
// connection to its agent. Both are nil when there is none.
func (p *Provider) claim(ctx context.Context, name string, pl *plan, h *ownership) (net.Conn, error) {
	if err := p.prepareNetwork(ctx, pl, p.namespace); err != nil {
		return nil, err
	}
	list, err := p.glancePool(ctx, pl.poolKey(), useReady)
	if err != nil {
		return nil, err
	}
	pods := make([]*corev1.Pod, len(list))
	for i := range list {
		pods[i] = &list[i]
	}
	return p.claimOne(ctx, name, pl, h, pods)
}

// claimOne claims the first of these pods that can be had and answers.
func (p *Provider) claimOne(ctx context.Context, name string, pl *plan, h *ownership, pods []*corev1.Pod) (net.Conn, error) {
	// Servers that claim at the same time should not try the same ones.
	rand.Shuffle(len(pods), func(i, j int) { pods[i], pods[j] = pods[j], pods[i] })
	for _, pod := range pods {
		if !usable(pod) {
			continue
		}
		cm, _ := h.now()
		won, err := p.take(ctx, name, pl, pod, cm)
		if err != nil {
			return nil, err
		}
		if !won {
			continue
		}
		p.wakePoolsSoon()
		// A record that does not say so yet is no loss: who finishes it finds the
		// pod by its label.
		h.along(func(r *record) { r.Pod, r.UID, r.FromPool = pod.Name, pod.UID, true })
		conn, err := p.open(ctx, pod)
		if err == nil {
			return conn, nil
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("reach the agent: %w", context.Cause(ctx))
		}
		if kube.OutOfReach(err) {
			return nil, fmt.Errorf("reach the agent: %w", err) // as with any other pod
		}
		p.log.WarnContext(ctx, "a pool's pod does not answer and is deleted", "pod", pod.Name, "error", err)
		if err := p.discard(ctx, pod, h); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// refillDelay lets the first commands of a sandbox run before another pod is
// started in its place.
const refillDelay = 250 * time.Millisecond

func (p *Provider) wakePoolsSoon() { time.AfterFunc(refillDelay, p.wakePools) }

// discard deletes a pod that was claimed and does not answer.
func (p *Provider) discard(ctx context.Context, pod *corev1.Pod, h *ownership) error {
	if err := p.deletePod(ctx, pod); err != nil {
		return err
	}
	return h.change(ctx, func(r *record) { r.Pod, r.UID, r.FromPool = "", "", false })
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
	for k, v := range podLabels(name, labelled{pl.spec.Tenant, pl.spec.Template, pl.spec.Labels}) {
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

func (p *Provider) listPool(ctx context.Context, key string, uses ...string) ([]corev1.Pod, error) {
	return p.poolPods(ctx, metav1.ListOptions{LabelSelector: poolSelector(key, uses...)})
}

// glancePool is listPool for those to whom it does not matter that what they
// see is some milliseconds old.
func (p *Provider) glancePool(ctx context.Context, key string, uses ...string) ([]corev1.Pod, error) {
	return p.poolPods(ctx, metav1.ListOptions{LabelSelector: poolSelector(key, uses...), ResourceVersion: kube.FromCache})
}

func poolSelector(key string, uses ...string) string {
	selector := labels.Set{managedBy: managedByValue, labelPool: key}.String()
	if len(uses) > 0 {
		selector += "," + labelUse + " in (" + strings.Join(uses, ",") + ")"
	}
	return selector
}

func (p *Provider) poolPods(ctx context.Context, opts metav1.ListOptions) ([]corev1.Pod, error) {
	list, err := p.pods(p.namespace).List(ctx, opts)
	if err != nil {
		return nil, kube.Wrap(ctx, "list a pool's pods", err)
	}
	return list.Items, nil
}
