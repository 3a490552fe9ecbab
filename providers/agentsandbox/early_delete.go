package agentsandbox

import (
	"context"
	"errors"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sandgate/sandgate/providers/internal/kube"
)

var errClaimGone = errors.New("the claim is gone, or has another pod")

// earlyDelete deletes the Sandbox and the pod of a claim that is being deleted. The
// cluster deletes both by itself, but with the pod's own grace period, 30 s by
// default, and some processes use all of it. The pod may be created only while its
// claim is being deleted.
type earlyDelete struct {
	p     *Provider
	claim *claim

	name   string // of the Sandbox and its pod
	cancel context.CancelCauseFunc
	done   sync.WaitGroup
	mu     sync.Mutex
	pod    *corev1.Pod // the last one seen that is not known to be gone
}

// deleteEarly starts an earlyDelete. Its stop must be called.
func (p *Provider) deleteEarly(ctx context.Context, c *claim) *earlyDelete {
	h := &earlyDelete{p: p, claim: c, cancel: func(error) {}}
	name := c.Status.Sandbox.Name
	if name == "" {
		name = c.Name
	}
	h.to(ctx, name)
	return h
}

// to sets the name of the claim's Sandbox, which may become known later.
func (h *earlyDelete) to(ctx context.Context, name string) {
	if name == h.name {
		return
	}
	h.cancel(errClaimGone)
	ctx, cancel := context.WithCancelCause(ctx)
	h.name, h.cancel = name, cancel
	h.done.Go(func() { h.run(ctx, name) })
}

// stop ends it, and returns the pod if that still exists.
func (h *earlyDelete) stop() *corev1.Pod {
	h.cancel(errClaimGone)
	h.done.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.pod
}

func (h *earlyDelete) run(ctx context.Context, name string) {
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

func (h *earlyDelete) see(pod *corev1.Pod) {
	h.mu.Lock()
	h.pod = pod
	h.mu.Unlock()
}

// claims reports whether a pod's Sandbox is the claim's.
func (h *earlyDelete) claims(ctx context.Context, owner *metav1.OwnerReference) bool {
	box, err := h.p.sandboxes.get(ctx, owner.Name)
	if err != nil {
		return false
	}
	return box.UID == owner.UID && metav1.IsControlledBy(box, h.claim)
}
