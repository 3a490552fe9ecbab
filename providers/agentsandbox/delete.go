package agentsandbox

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/kube"
)

// podGrace is how many seconds the processes of a sandbox that is deleted have
// to end. The pod's own grace period is for programs with work to finish.
const podGrace = int64(1)

// Delete removes the claim, and returns when the pod is gone.
func (p *Provider) Delete(ctx context.Context, name string, c providers.Condition) error {
	for {
		s, err := p.find(ctx, name)
		if err != nil {
			return fmt.Errorf("delete: %w", err)
		}
		if !s.deleting && c.InUse(s.record.LastActivity) {
			return fmt.Errorf("delete %s: %w", name, providers.ErrInUse)
		}
		if c.Incarnation != "" && !s.deleting {
			pod, err := p.pod(ctx, s)
			if err != nil {
				return err
			}
			if now := s.info(pod).Incarnation; now != c.Incarnation {
				return fmt.Errorf("delete %s: it is incarnation %s: %w", name, now, providers.ErrReplaced)
			}
		}
		if s.record.Target != nil {
			err = p.release(ctx, s)
		} else {
			err = p.removeClaim(ctx, s, c)
		}
		if !apierrors.IsConflict(err) || ctx.Err() != nil {
			return err
		}
	}
}

func (p *Provider) removeClaim(ctx context.Context, s observed, cond providers.Condition) error {
	c, err := p.claims.get(ctx, s.name)
	if err != nil {
		return kube.Wrap(ctx, "delete "+s.name, err)
	}
	if c.UID != s.uid {
		return fmt.Errorf("delete %s: %w", s.name, providers.ErrNotFound)
	}
	// The version read here is the deletion's condition, so the check must be on
	// the same one.
	if now := ofClaim(c); !now.deleting && cond.InUse(now.record.LastActivity) {
		return fmt.Errorf("delete %s: %w", s.name, providers.ErrInUse)
	}
	return p.remove(ctx, c)
}

// remove deletes a claim and all that was made for it. Only one call gets nil:
// the version that it read is a condition, and the deletion makes another. The
// error is the cluster's conflict when the claim has changed since.
func (p *Provider) remove(ctx context.Context, c *claim) error {
	if c.DeletionTimestamp != nil {
		if err := p.awaitGone(ctx, c); err != nil {
			return err
		}
		return fmt.Errorf("delete %s: another client did: %w", c.Name, providers.ErrNotFound)
	}
	foreground := metav1.DeletePropagationForeground
	err := p.claims.delete(ctx, c.Name, metav1.DeleteOptions{
		PropagationPolicy: &foreground,
		Preconditions:     &metav1.Preconditions{UID: &c.UID, ResourceVersion: &c.ResourceVersion},
	})
	if apierrors.IsConflict(err) {
		return err
	}
	if err != nil {
		return kube.Wrap(ctx, "delete "+c.Name, err)
	}
	return p.awaitGone(ctx, c)
}

// awaitGone waits for the end of a claim that is being deleted, and of its pod.
func (p *Provider) awaitGone(ctx context.Context, c *claim) error {
	h := p.deleteEarly(ctx, c)
	err := p.followGone(ctx, c, h)
	pod := h.stop()
	if err == nil && pod != nil {
		err = p.podGone(ctx, pod)
	}
	return err
}

func (p *Provider) followGone(ctx context.Context, c *claim, h *earlyDelete) error {
	object := kube.Object[*unstructured.Unstructured]{Name: c.Name, Get: p.claims.getRaw, Watch: p.claims.watch}
	return kube.Follow(ctx, object, func(now *unstructured.Unstructured, exists bool) (bool, error) {
		if !exists || now.GetUID() != c.UID {
			return true, nil
		}
		if name, _, _ := unstructured.NestedString(now.Object, "status", "sandbox", "name"); name != "" {
			h.to(ctx, name)
		}
		return false, nil
	})
}

// endPod deletes a pod with a short grace period, whatever its spec asks for. The
// cluster's own deletion follows in any case.
func (p *Provider) endPod(ctx context.Context, pod *corev1.Pod) {
	if now := pod.DeletionGracePeriodSeconds; now != nil && *now <= podGrace {
		return
	}
	grace := podGrace
	_ = p.Core.Pods(p.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: &grace, Preconditions: &metav1.Preconditions{UID: &pod.UID},
	})
}

// podGone waits until the kubelet has reported the end of the pod's processes.
func (p *Provider) podGone(ctx context.Context, pod *corev1.Pod) error {
	err := kube.AwaitPodGone(ctx, p.Core.Pods(p.Namespace), pod)
	if err == nil {
		p.agents.Drop(pod.UID)
	}
	return err
}
