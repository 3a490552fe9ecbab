package agentsandbox

import (
	"context"
	"errors"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sandgate/sandgate/providers/internal/kube"
)

var errHastened = errors.New("the claim is gone, or has another pod")

// hastening speeds up the end of what a claim that is being deleted owns. The
// cluster ends all of it by itself, but gives a pod the patience that its spec
// asks for, half a minute unless it says less, and some processes use all of it.
// The pod may only come into being while its claim goes.
type hastening struct {
	p     *Provider
	claim *claim

	name   string // of the Sandbox and its pod
	cancel context.CancelCauseFunc
	done   sync.WaitGroup
	mu     sync.Mutex
	pod    *corev1.Pod // the last one seen that is not known to be gone
}

// hasten begins. Its stop must be called.
func (p *Provider) hasten(ctx context.Context, c *claim) *hastening {
	h := &hastening{p: p, claim: c, cancel: func(error) {}}
	name := c.Status.Sandbox.Name
	if name == "" {
		name = c.Name
	}
	h.to(ctx, name)
	return h
}

// to says the name of the claim's Sandbox, which is not known from the start.
func (h *hastening) to(ctx context.Context, name string) {
	if name == h.name {
		return
	}
	h.cancel(errHastened)
	ctx, cancel := context.WithCancelCause(ctx)
	h.name, h.cancel = name, cancel
	h.done.Go(func() { h.run(ctx, name) })
}

// stop ends it, and returns the pod that was still there.
func (h *hastening) stop() *corev1.Pod {
	h.cancel(errHastened)
	h.done.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.pod
}

func (h *hastening) run(ctx context.Context, name string) {
	p := h.p
	box, err := p.sandboxes.get(ctx, name)
	if err == nil && metav1.IsControlledBy(box, h.claim) {
		foreground := metav1.DeletePropagationForeground
		_ = p.sandboxes.delete(ctx, name, metav1.DeleteOptions{
			PropagationPolicy: &foreground, Preconditions: &metav1.Preconditions{UID: &box.UID},
		})
	}
	_ = kube.Follow(ctx, p.podObject(name), func(pod *corev1.Pod, exists bool) (bool, error) {
		if !exists {
			h.see(nil)
			return false, nil
		}
		owner := metav1.GetControllerOf(pod)
		if owner == nil || owner.Kind != sandboxKind || owner.Name != name || !h.claims(ctx, owner) {
			return false, nil
		}
		h.see(pod)
		p.endPod(ctx, pod)
		err := p.podGone(ctx, pod)
		if err == nil {
			h.see(nil)
		}
		return false, err
	})
}

func (h *hastening) see(pod *corev1.Pod) {
	h.mu.Lock()
	h.pod = pod
	h.mu.Unlock()
}

// claims reports whether a pod's Sandbox is the claim's. One that is gone, and
// only left its pod, was.
func (h *hastening) claims(ctx context.Context, owner *metav1.OwnerReference) bool {
	box, err := h.p.sandboxes.get(ctx, owner.Name)
	if err != nil {
		return false
	}
	return box.UID == owner.UID && metav1.IsControlledBy(box, h.claim)
}
