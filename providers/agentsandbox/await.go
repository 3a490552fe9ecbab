package agentsandbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/kube"
)

const (
	// podLook is the time until a pod that is not ready is inspected. Pods from a
	// pool are ready before.
	podLook = 250 * time.Millisecond
	// referenceGrace is how long the controller may not see a pool or a template
	// that was just created.
	referenceGrace = 5 * time.Second
)

// await waits until the sandbox's container runs and the controller calls it
// ready. It fails as soon as it is known that this will not happen, with the
// reason. The error wraps errGone if the sandbox was deleted. Meanwhile await
// starts a speculative dial, if possible.
func (p *Provider) await(calling context.Context, s observed, early *speculativeDial) (observed, agentContainer, error) {
	ctx, cancel := context.WithCancelCause(calling)
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
		err = p.awaitClaim(ctx, &s, early)
	}
	if err != nil {
		return s, agentContainer{}, inTrouble(calling, ctx, err)
	}
	at, reached := early.reached(s.sandbox)
	if reached {
		return s, at, nil
	}
	err = kube.Follow(ctx, p.podObject(s.sandbox), func(pod *corev1.Pod, exists bool) (bool, error) {
		if !exists {
			return false, p.stillThere(ctx, s)
		}
		var err error
		at, err = s.agentContainer(s.own(pod))
		if errors.Is(err, errNotRunning) {
			if podEnded(pod) {
				return false, fmt.Errorf("%s: %w", kube.Ended(pod, "").Message, providers.ErrStartFailed)
			}
			return false, nil
		}
		return true, err
	})
	return s, at, inTrouble(calling, ctx, err)
}

// inTrouble returns the result of watchPod, if that ended the wait.
func inTrouble(calling, waiting context.Context, err error) error {
	if err != nil && calling.Err() == nil && waiting.Err() != nil {
		return context.Cause(waiting)
	}
	return err
}

// endedPod returns the pod if the conditions may be about its end, and nil
// otherwise or if it cannot be read.
func (p *Provider) endedPod(ctx context.Context, s observed) *corev1.Pod {
	if !s.reportsPodEnd() {
		return nil
	}
	pod, err := p.pod(ctx, s)
	if err != nil {
		return nil
	}
	return pod
}

// stillThere returns an error that wraps errGone if a sandbox's claim is deleted or
// being deleted. It does not check adopted sandboxes.
func (p *Provider) stillThere(ctx context.Context, s observed) error {
	if s.record.Target != nil {
		return nil
	}
	c, err := p.claims.get(ctx, s.name)
	if apierrors.IsNotFound(err) || err == nil && (c.UID != s.uid || c.DeletionTimestamp != nil) {
		return fmt.Errorf("sandbox %s: %w: %w", s.name, errGone, providers.ErrUnavailable)
	}
	return nil
}

// awaitClaim follows the claim until it is ready.
func (p *Provider) awaitClaim(ctx context.Context, s *observed, early *speculativeDial) error {
	missing := time.Time{}
	see := func(u *unstructured.Unstructured, exists bool) (bool, error) {
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
		if err := s.terminal(p.endedPod(ctx, *s)); err != nil {
			return false, err
		}
		if chosen := c.Annotations[chosenAnnotation]; chosen != "" {
			early.begin(ctx, p, *s, chosen)
		}
		if s.ready == nil || s.ready.Reason != reasonNoPool && s.ready.Reason != reasonNoTemplate {
			missing = time.Time{}
			return false, nil
		}
		if missing.IsZero() {
			missing = time.Now()
		}
		if time.Since(missing) < referenceGrace {
			return false, nil
		}
		p.known.Delete(c.Spec.WarmPoolRef.Name) // it was deleted; the next call makes it anew
		return false, fmt.Errorf("template %q: in namespace %s the cluster reports %s: %s: %w", s.record.Spec.Template, p.Namespace, s.ready.Reason, s.ready.Message, providers.ErrStartFailed)
	}
	if s.ready == nil {
		// It had no condition when it was read.
		return kube.FollowFrom(ctx, p.carrier(*s), s.version, see)
	}
	return kube.Follow(ctx, p.carrier(*s), see)
}

// watchPod cancels the wait if the pod of a claim will not become ready. The
// controller replaces a pod that is being deleted.
func (p *Provider) watchPod(ctx context.Context, name string, cancel context.CancelCauseFunc) {
	select {
	case <-ctx.Done():
		return
	case <-time.After(podLook):
	}
	judge := kube.NewDiagnosis(kube.Grace{})
	err := kube.Follow(ctx, p.podObject(name), func(pod *corev1.Pod, exists bool) (bool, error) {
		if !exists || (observed{sandbox: name}).own(pod) == nil || pod.DeletionTimestamp != nil {
			judge = kube.NewDiagnosis(kube.Grace{})
			return false, nil
		}
		trouble := judge.Check(pod)
		if trouble == nil {
			return false, nil
		}
		return true, kube.Explain(trouble, kube.Events(ctx, p.Core, p.Namespace, pod.UID))
	})
	if err != nil && ctx.Err() == nil {
		cancel(err)
	}
}
