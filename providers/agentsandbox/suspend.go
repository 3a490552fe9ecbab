package agentsandbox

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/kube"
)

// Suspend has the pod deleted and keeps the Sandbox with its volumes. What is
// not on a volume is lost.
func (p *Provider) Suspend(ctx context.Context, name string) (providers.Info, error) {
	s, pod, err := p.look(ctx, name)
	if err != nil {
		return providers.Info{}, fmt.Errorf("suspend: %w", err)
	}
	info := p.info(ctx, s, pod)
	switch info.State {
	case providers.StateActive, providers.StateCreating, providers.StateSuspended:
	default:
		return providers.Info{}, notNow("suspend", info)
	}
	if s.sandbox == "" {
		return providers.Info{}, fmt.Errorf("suspend sandbox %q: it has no Sandbox yet: %w", info.Spec.ID, providers.ErrUnavailable)
	}
	if err := p.remember(ctx, s, info.Incarnation); err != nil {
		return providers.Info{}, err
	}
	if err := p.setMode(ctx, s, modeSuspended); err != nil {
		return providers.Info{}, err
	}
	ctx, stop := p.whileMode(ctx, s, modeSuspended)
	defer stop()
	err = p.awaitPodGone(ctx, pod)
	if err == nil {
		info, err = p.awaitState(ctx, s, providers.StateSuspended)
	}
	if err != nil {
		return providers.Info{}, overtaken(ctx, err)
	}
	return info, nil
}

// notNow is the error for a state in which a sandbox cannot be suspended or
// resumed.
func notNow(what string, info providers.Info) error {
	return providers.NotActive(info, "%s sandbox %q: it is %s", what, info.Spec.ID, info.Status())
}

var errOvertaken = errors.New("by another call")

// whileMode ends a context when the Sandbox has another mode than the given one,
// since somebody else has set that: what the first one waits for will not come.
// The cause wraps providers.ErrNotActive.
func (p *Provider) whileMode(ctx context.Context, s observed, mode string) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	done, now := "resumed", providers.Info{State: providers.StateCreating}
	if mode == modeRunning {
		done, now.State = "suspended", providers.StateSuspended
	}
	var watching sync.WaitGroup
	watching.Go(func() {
		object := kube.Object[*unstructured.Unstructured]{Name: s.sandbox, Get: p.sandboxes.getRaw, Watch: p.sandboxes.watch}
		// Who waits finds out by itself about a Sandbox that goes, or a cluster
		// that does not answer.
		_ = kube.Follow(ctx, object, func(u *unstructured.Unstructured, exists bool) (bool, error) {
			if !exists {
				return true, nil
			}
			b, err := typed[sandbox](u)
			if err != nil || b.mode() == mode {
				return false, err
			}
			cancel(providers.NotActive(now, "sandbox %q was %s meanwhile, %w", s.record.Spec.ID, done, errOvertaken))
			return true, nil
		})
	})
	return ctx, func() {
		cancel(nil)
		watching.Wait()
	}
}

// overtaken is the cause of whileMode's, where that is why a wait failed.
func overtaken(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); errors.Is(cause, errOvertaken) {
		return cause
	}
	return err
}

// awaitPodGone gives the processes no more time than a deletion does.
func (p *Provider) awaitPodGone(ctx context.Context, pod *corev1.Pod) error {
	if pod == nil {
		return nil
	}
	p.endPod(ctx, pod)
	return p.podGone(ctx, pod)
}

// Resume has the controller make another pod. A suspension that is under way is brought to its end first.
func (p *Provider) Resume(ctx context.Context, name string) (providers.Info, net.Conn, error) {
	s, pod, err := p.look(ctx, name)
	if err != nil {
		return providers.Info{}, nil, fmt.Errorf("resume: %w", err)
	}
	info := p.info(ctx, s, pod)
	switch info.State {
	case providers.StateActive, providers.StateSuspended, providers.StateCreating:
	default:
		return providers.Info{}, nil, notNow("resume", info)
	}
	if s.sandbox == "" {
		return providers.Info{}, nil, fmt.Errorf("resume sandbox %q: it has no Sandbox yet: %w", info.Spec.ID, providers.ErrUnavailable)
	}
	b, err := p.sandboxes.get(ctx, s.sandbox)
	if err != nil {
		return providers.Info{}, nil, kube.Wrap(ctx, "Sandbox "+s.sandbox, err)
	}
	switch {
	case b.mode() == modeSuspended:
		// Else the agent would be looked for in a pod that is about to go.
		if err := p.awaitPodGone(ctx, pod); err != nil {
			return providers.Info{}, nil, err
		}
	case info.State == providers.StateActive:
		return info, nil, nil
	}
	if err := p.setMode(ctx, s, modeRunning); err != nil {
		return providers.Info{}, nil, err
	}
	ctx, stop := p.whileMode(ctx, s, modeRunning)
	defer stop()
	info, conn, err := p.finish(ctx, s)
	if errors.Is(err, errGone) {
		return providers.Info{}, nil, fmt.Errorf("resume %s: %w", name, providers.ErrNotFound)
	}
	if err != nil {
		return providers.Info{}, nil, overtaken(ctx, err)
	}
	return info, conn, nil
}

// setMode changes the Sandbox itself: the claim's controller leaves its mode
// alone.
func (p *Provider) setMode(ctx context.Context, s observed, mode string) error {
	_, err := p.sandboxes.patch(ctx, s.sandbox, map[string]any{"spec": map[string]any{"operatingMode": mode}})
	return kube.Wrap(ctx, fmt.Sprintf("set Sandbox %s to %s", s.sandbox, mode), err)
}

// remember stores an incarnation for the time without a pod.
func (p *Provider) remember(ctx context.Context, s observed, incarnation string) error {
	if incarnation == "" || incarnation == s.seen {
		return nil
	}
	meta := map[string]any{"uid": s.uid, "annotations": map[string]string{annotationSeen: incarnation}}
	if s.record.Target != nil {
		return p.writeAdopted(ctx, s.name, meta)
	}
	_, err := p.claims.patch(ctx, s.name, map[string]any{"metadata": meta})
	return kube.Wrap(ctx, "store the incarnation of "+s.name, err)
}

// awaitState waits until the controller reports a state of a sandbox.
func (p *Provider) awaitState(ctx context.Context, s observed, want providers.State) (providers.Info, error) {
	var info providers.Info
	err := kube.Follow(ctx, p.carrier(s), func(*unstructured.Unstructured, bool) (bool, error) {
		var err error
		info, err = p.Get(ctx, s.name)
		return err != nil || info.State == want, err
	})
	return info, err
}

// carrier is the object whose conditions tell of a sandbox.
func (p *Provider) carrier(s observed) kube.Object[*unstructured.Unstructured] {
	claim := kube.Object[*unstructured.Unstructured]{Name: s.name, Get: p.claims.getRaw, Watch: p.claims.watch}
	switch t := s.record.Target; {
	case t == nil:
		return claim
	case t.Kind == claimKind:
		claim.Name = t.Name
		return claim
	default:
		return kube.Object[*unstructured.Unstructured]{Name: t.Name, Get: p.sandboxes.getRaw, Watch: p.sandboxes.watch}
	}
}
