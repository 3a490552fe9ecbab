package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/kube"
)

var getOptions metav1.GetOptions

// Delete ends the sandbox. When ctx ends before the pod is gone, the deletion
// goes on in the background, of this server or another.
func (p *Provider) Delete(ctx context.Context, name string, c providers.Condition) error {
	for {
		if ctx.Err() != nil {
			return fmt.Errorf("delete %s: %w", name, context.Cause(ctx))
		}
		cm, rec, err := p.read(ctx, name)
		if errors.Is(err, errUnreadable) {
			return p.records().Delete(ctx, name, metav1.DeleteOptions{})
		}
		if err != nil {
			return fmt.Errorf("delete %s: %w", name, err)
		}
		if c.Incarnation != "" && c.Incarnation != string(rec.UID) {
			return fmt.Errorf("delete %s: it is %q: %w", name, rec.UID, providers.ErrReplaced)
		}
		if rec.Phase != phaseActive {
			if err := p.awaitOther(ctx, name, rec.Phase); err != nil {
				return err
			}
			continue
		}
		if c.InUse(rec.LastActivity) {
			return fmt.Errorf("delete %s: %w", name, providers.ErrInUse)
		}
		// A write since the record was read makes this one fail.
		h, err := p.mark(ctx, cm, rec)
		if errors.Is(err, errTakenOver) {
			continue // somebody changed or deleted it just now
		}
		if err != nil {
			return err
		}
		defer h.release()
		return p.destroy(ctx, h)
	}
}

// awaitOther waits for whoever creates or deletes the sandbox, and goes on in
// place of one who has stopped.
func (p *Provider) awaitOther(ctx context.Context, name string, from phase) error {
	stale, err := p.await(ctx, name, from)
	if err != nil || !stale {
		return err
	}
	_, err = p.takeOver(ctx, name, from)
	return err
}

// mark makes this call the one that deletes.
func (p *Provider) mark(ctx context.Context, cm *corev1.ConfigMap, rec *record) (*ownership, error) {
	_, h := p.own(ctx, cm, rec, newOwner())
	err := h.change(ctx, func(r *record) { r.Phase, r.Heartbeat = phaseDeleting, r.Heartbeat+1 })
	if err != nil {
		h.release()
		return nil, err
	}
	return h, nil
}

// takeOver deletes a sandbox whose maker or deleter is gone. It reports whether
// it was this call that did.
func (p *Provider) takeOver(ctx context.Context, name string, from phase) (bool, error) {
	cm, rec, err := p.read(ctx, name)
	if errors.Is(err, providers.ErrNotFound) || err == nil && rec.Phase != from {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	h, err := p.mark(ctx, cm, rec)
	if errors.Is(err, errTakenOver) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer h.release()
	return true, p.destroy(ctx, h)
}

// undo removes what a creation has made so far.
func (p *Provider) undo(ctx context.Context, h *ownership) error {
	if err := h.change(ctx, func(r *record) { r.Phase = phaseDeleting }); err != nil {
		if errors.Is(err, errTakenOver) {
			return nil
		}
		return err
	}
	return p.destroy(ctx, h)
}

// destroy removes everything that belongs to a record marked as deleting, and
// the record last.
func (p *Provider) destroy(ctx context.Context, h *ownership) error {
	cm, rec := h.now()
	if rec.OwnNamespace {
		if err := p.deleteNamespace(ctx, cm, rec); err != nil {
			return err
		}
	} else if err := p.deletePods(ctx, cm.Name, rec); err != nil {
		return err
	}
	p.agents.Drop(rec.UID)
	uid := cm.UID
	err := p.records().Delete(ctx, cm.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &uid}, PropagationPolicy: new(metav1.DeletePropagationBackground),
	})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return kube.Wrap(ctx, "delete the sandbox's record", err)
}

// deletePods deletes the sandbox's pods, of which there is one at most unless a
// claim was interrupted, and returns when they are gone.
func (p *Provider) deletePods(ctx context.Context, name string, rec *record) error {
	selector := labels.Set{managedBy: managedByValue, labelName: name}.String()
	list, err := p.pods(rec.Namespace).List(ctx, metav1.ListOptions{LabelSelector: selector, ResourceVersion: kube.FromCache})
	if err != nil {
		return kube.Wrap(ctx, "find the sandbox's pod", err)
	}
	pods := list.Items
	if rec.Pod != "" && !slices.ContainsFunc(pods, func(pod corev1.Pod) bool { return pod.UID == rec.UID }) {
		// It is gone, or so new that the cache does not show it.
		pod, err := p.pods(rec.Namespace).Get(ctx, rec.Pod, getOptions)
		if err != nil && !apierrors.IsNotFound(err) {
			return kube.Wrap(ctx, "find the sandbox's pod", err)
		}
		if err == nil && pod.UID == rec.UID {
			pods = append(pods, *pod)
		}
	}
	for i := range pods {
		if err := p.deletePod(ctx, &pods[i]); err != nil {
			return err
		}
	}
	for i := range pods {
		if err := kube.AwaitPodGone(ctx, p.pods(rec.Namespace), &pods[i]); err != nil {
			return err
		}
	}
	return nil
}

// deletePod tells the cluster to delete a pod and the secret that goes with it.
func (p *Provider) deletePod(ctx context.Context, pod *corev1.Pod) error {
	opts := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}}
	if kube.NeverStarted(pod) {
		// There is no process to wait for, and a kubelet that tries again to start
		// one takes its time to notice.
		opts.GracePeriodSeconds = new(int64)
	}
	err := p.pods(pod.Namespace).Delete(ctx, pod.Name, opts)
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return kube.Wrap(ctx, "delete the sandbox's pod", err)
	}
	return p.deleteSecret(ctx, pod)
}
