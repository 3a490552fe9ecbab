package agentsandbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/kube"
)

const (
	// podLook is when a pod that is not ready is looked at. What comes from a
	// pool is ready before.
	podLook = 250 * time.Millisecond
	// referencePatience is how long the controller may not see a pool or a
	// template that has just been made.
	referencePatience = 5 * time.Second
)

// await waits until the sandbox's container runs and the controller calls it
// ready. It fails as soon as it is known that this will not happen, with the
// reason. The error wraps errGone when the sandbox was deleted.
func (p *Provider) await(ctx context.Context, s subject) (subject, seat, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel(nil)
	if s.record.Target == nil {
		name := s.name
		watching.Go(func() { p.watchPod(ctx, name, cancel) })
	}
	var err error
	if s.record.Target != nil {
		err = p.awaitTarget(ctx, &s)
	} else {
		err = p.awaitClaim(ctx, &s)
	}
	if err != nil {
		return s, seat{}, err
	}
	var at seat
	err = kube.Follow(ctx, p.podObject(s.sandbox), func(pod *corev1.Pod, exists bool) (bool, error) {
		if !exists {
			return false, nil
		}
		var err error
		at, err = s.seatOf(s.own(pod))
		if errors.Is(err, errNotRunning) {
			if end := kube.Ended(pod, ""); end != nil {
				return false, fmt.Errorf("%s: %w", end.Message, providers.ErrStartFailed)
			}
			return false, nil
		}
		return true, err
	})
	return s, at, err
}

// awaitClaim follows the claim until it is ready.
func (p *Provider) awaitClaim(ctx context.Context, s *subject) error {
	missing := time.Time{}
	return kube.Follow(ctx, p.carrier(*s), func(u *unstructured.Unstructured, exists bool) (bool, error) {
		if !exists || u.GetUID() != s.uid || u.GetDeletionTimestamp() != nil {
			return false, fmt.Errorf("sandbox %s: %w: %w", s.name, errGone, providers.ErrUnavailable)
		}
		c, err := typed[claim](u)
		if err != nil {
			return false, err
		}
		*s = ofClaim(c)
		if holds(s.ready) && s.sandbox != "" {
			return true, nil
		}
		if err := s.terminal(); err != nil {
			return false, err
		}
		if s.ready == nil || s.ready.Reason != reasonNoPool && s.ready.Reason != reasonNoTemplate {
			missing = time.Time{}
			return false, nil
		}
		if missing.IsZero() {
			missing = time.Now()
		}
		if time.Since(missing) < referencePatience {
			return false, nil
		}
		p.known.Delete(c.Spec.WarmPoolRef.Name) // it was deleted; the next call makes it anew
		return false, fmt.Errorf("%s: %s: %w", s.ready.Reason, s.ready.Message, providers.ErrStartFailed)
	})
}

// watchPod ends the waiting when the pod that is made for a claim will not
// become ready.
func (p *Provider) watchPod(ctx context.Context, name string, cancel context.CancelCauseFunc) {
	select {
	case <-ctx.Done():
		return
	case <-time.After(podLook):
	}
	judge := kube.NewWatcher(kube.Patience{})
	err := kube.Follow(ctx, p.podObject(name), func(pod *corev1.Pod, exists bool) (bool, error) {
		if !exists || (subject{sandbox: name}).own(pod) == nil {
			return false, nil
		}
		trouble := judge.Trouble(pod)
		if trouble == nil {
			return false, nil
		}
		if said := kube.Events(ctx, p.core, p.namespace, pod.UID); said != "" {
			trouble = fmt.Errorf("%w (%s)", trouble, said)
		}
		return true, trouble
	})
	if err != nil && ctx.Err() == nil {
		cancel(err)
	}
}
