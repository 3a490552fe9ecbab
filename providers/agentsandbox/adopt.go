package agentsandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/kube"
	shared "github.com/sandgate/sandgate/providers/internal/record"
)

// target is a SandboxClaim or Sandbox that another client created and Sandgate has
// adopted. The sandbox's record is then a ConfigMap with an owner reference to the
// target. An annotation of the target names the sandbox that has adopted it,
// because two tenants in one would see each other's commands.
type target struct {
	Kind string    `json:"kind"`
	Name string    `json:"name"`
	UID  types.UID `json:"uid"`
	// Delete is true if the target is deleted with the sandbox.
	Delete bool `json:"delete,omitempty"`
}

const (
	claimKind   = "SandboxClaim"
	sandboxKind = "Sandbox"
)

func (t target) String() string { return t.Kind + " " + t.Name }

// existing is the current state of a target.
type existing struct {
	meta            metav1.ObjectMeta
	version         string // of its API
	ready, finished *metav1.Condition
	sandbox         string
}

func (p *Provider) existing(ctx context.Context, t target) (existing, error) {
	if t.Kind == claimKind {
		c, err := p.claims.get(ctx, t.Name)
		if err != nil {
			return existing{}, err
		}
		s := ofClaim(c)
		return existing{c.ObjectMeta, claimsResource.GroupVersion().String(), s.ready, s.finished, s.sandbox}, nil
	}
	b, err := p.sandboxes.get(ctx, t.Name)
	if err != nil {
		return existing{}, err
	}
	return existing{
		b.ObjectMeta, sandboxesResource.GroupVersion().String(),
		condition(b.Status.Conditions, conditionReady), condition(b.Status.Conditions, conditionFinished), b.Name,
	}, nil
}

// adopt creates a record for an existing target, or joins the existing record.
func (p *Provider) adopt(ctx context.Context, name string, spec providers.Spec, o options) (providers.Info, net.Conn, error) {
	t := target{Kind: sandboxKind, Name: o.ExistingSandbox, Delete: o.DeleteExisting}
	if o.ExistingClaim != "" {
		t.Kind, t.Name = claimKind, o.ExistingClaim
	}
	if len(spec.Env) > 0 {
		return providers.Info{}, nil, fmt.Errorf("env: %s exists already; pass it to each command: %w", t, providers.ErrUnsupported)
	}
	if s, err := p.find(ctx, name); err == nil {
		return p.joinAdopted(ctx, s, spec, t)
	} else if !errors.Is(err, providers.ErrNotFound) {
		return providers.Info{}, nil, err
	}
	now, err := p.existing(ctx, t)
	if apierrors.IsNotFound(err) {
		return providers.Info{}, nil, fmt.Errorf("there is no %s in namespace %s: %w", t, p.Namespace, providers.ErrStartFailed)
	}
	if err != nil {
		return providers.Info{}, nil, kube.Wrap(ctx, t.String(), err)
	}
	if err := adoptable(t, now, name, spec.Tenant); err != nil {
		return providers.Info{}, nil, err
	}
	t.UID = now.meta.UID
	marks := map[string]any{annotationAdopted: name, annotationFormer: shared.Digest(spec.Tenant)}
	if err := p.mark(ctx, t, now, marks); err != nil {
		if apierrors.IsConflict(err) {
			return providers.Info{}, nil, errAgain
		}
		return providers.Info{}, nil, kube.Wrap(ctx, "mark "+t.String(), err)
	}
	s, err := p.makeAdopted(ctx, name, spec, t, now)
	if apierrors.IsAlreadyExists(err) {
		return providers.Info{}, nil, errAgain
	}
	var info providers.Info
	var conn net.Conn
	if err == nil {
		info, conn, err = p.finish(ctx, s)
	}
	if err != nil {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
		defer cancel()
		s.name, s.record.Target = name, &t
		return providers.Info{}, nil, errors.Join(kube.Wrap(ctx, "adopt "+t.String(), err), p.forget(clean, s))
	}
	info.Created = true
	return info, conn, nil
}

// adoptable rejects targets that are not free: sandboxes of Sandgate's tenants, a
// pool's sandboxes, those that are adopted already, and those with the files of
// another tenant.
func adoptable(t target, now existing, name, tenant string) error {
	refuse := func(why string) error {
		return fmt.Errorf("%s cannot be adopted: %s: %w", t, why, providers.ErrForbidden)
	}
	switch by := now.meta.Annotations[annotationAdopted]; {
	case now.meta.DeletionTimestamp != nil:
		return refuse("it is being deleted")
	case ours(now.meta.Labels, kindSandbox):
		return refuse("it is a sandbox of Sandgate's; use its id")
	case by != "" && by != name:
		return refuse("another sandbox has adopted it already")
	}
	if former := now.meta.Annotations[annotationFormer]; former != "" && former != shared.Digest(tenant) {
		return refuse("another tenant had it and its files may be there; delete it, or clean it and remove its annotation " + annotationFormer)
	}
	if owner := metav1.GetControllerOf(&now.meta); owner != nil && t.Kind == sandboxKind {
		return refuse(fmt.Sprintf("it belongs to the %s %s", owner.Kind, owner.Name))
	}
	return nil
}

// joinAdopted waits for an adopted sandbox that exists under the name.
func (p *Provider) joinAdopted(ctx context.Context, s observed, spec providers.Spec, t target) (providers.Info, net.Conn, error) {
	switch {
	case s.deleting:
		return providers.Info{}, nil, fmt.Errorf("sandbox %s is being deleted: %w", s.name, providers.ErrUnavailable)
	case s.record.Target == nil || s.record.Spec.Hash != spec.Hash || s.record.Target.Name != t.Name:
		return providers.Info{}, nil, fmt.Errorf("sandbox %s: %w", s.name, providers.ErrExists)
	}
	info, conn, err := p.finish(ctx, s)
	if errors.Is(err, errGone) {
		return providers.Info{}, nil, errAgain
	}
	return info, conn, err
}

// mark sets annotations of the target about its adoption; nil removes one.
func (p *Provider) mark(ctx context.Context, t target, now existing, annotations map[string]any) error {
	fields := map[string]any{"metadata": map[string]any{
		"uid": now.meta.UID, "resourceVersion": now.meta.ResourceVersion, "annotations": annotations,
	}}
	if t.Kind == claimKind {
		_, err := p.claims.patch(ctx, t.Name, fields)
		return err
	}
	_, err := p.sandboxes.patch(ctx, t.Name, fields)
	return err
}

func (p *Provider) makeAdopted(ctx context.Context, name string, spec providers.Spec, t target, now existing) (observed, error) {
	r := newRecord(spec)
	r.Target = &t
	text, err := r.encode()
	if err != nil {
		return observed{}, err
	}
	m, err := p.Core.ConfigMaps(p.Namespace).Create(ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: recordLabels(kindAdopted, spec), Annotations: map[string]string{annotationRecord: text},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: now.version, Kind: t.Kind, Name: t.Name, UID: t.UID}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return observed{}, err
	}
	return ofAdopted(m, now), nil
}

func ofAdopted(m *corev1.ConfigMap, now existing) observed {
	s := observed{
		name: m.Name, uid: m.UID, version: m.ResourceVersion, seen: m.Annotations[annotationSeen],
		deleting: m.DeletionTimestamp != nil || now.meta.DeletionTimestamp != nil,
		ready:    now.ready, finished: now.finished, sandbox: now.sandbox,
	}
	s.record, s.broken = decodeRecord(m.Annotations[annotationRecord])
	return s
}

func (p *Provider) findAdopted(ctx context.Context, name string) (observed, error) {
	m, err := p.Core.ConfigMaps(p.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return observed{}, kube.Wrap(ctx, "sandbox "+name, err)
	}
	if !ours(m.Labels, kindAdopted) {
		return observed{}, fmt.Errorf("sandbox %s: %w", name, providers.ErrNotFound)
	}
	return p.refreshAdopted(ctx, m)
}

// refreshAdopted adds the state of the target. A sandbox is gone with its target.
func (p *Provider) refreshAdopted(ctx context.Context, m *corev1.ConfigMap) (observed, error) {
	r, err := decodeRecord(m.Annotations[annotationRecord])
	if err != nil || r.Target == nil {
		return observed{name: m.Name, uid: m.UID, version: m.ResourceVersion, broken: errors.Join(err, errors.New("it names no target")), record: record{Target: &target{}}}, nil
	}
	now, err := p.existing(ctx, *r.Target)
	if err == nil && now.meta.UID != r.Target.UID {
		return observed{}, fmt.Errorf("sandbox %s: the %s that it adopted is gone: %w", m.Name, r.Target, providers.ErrNotFound)
	}
	if err != nil {
		return observed{}, kube.Wrap(ctx, r.Target.String(), err)
	}
	return ofAdopted(m, now), nil
}

// awaitTarget follows the target until it is ready.
func (p *Provider) awaitTarget(ctx context.Context, s *observed) error {
	t := *s.record.Target
	return kube.Follow(ctx, p.carrier(*s), func(u *unstructured.Unstructured, exists bool) (bool, error) {
		if !exists || u.GetUID() != t.UID {
			return false, fmt.Errorf("%s: %w: %w", t, errGone, providers.ErrUnavailable)
		}
		now, err := p.existing(ctx, t)
		if err != nil {
			return false, kube.Wrap(ctx, t.String(), err)
		}
		s.ready, s.finished, s.sandbox = now.ready, now.finished, now.sandbox
		pod := p.endedPod(ctx, *s)
		if holds(s.finished) && podEnded(pod) {
			failed := providers.Info{State: providers.StateFailed, Failure: kube.Ended(pod, "").Failure}
			return false, providers.NotActive(failed, "%s has ended: %s", t, s.finished.Message)
		}
		if err := s.terminal(pod); err != nil {
			return false, err
		}
		return holds(s.ready) && s.sandbox != "", nil
	})
}

// release removes the record, and the target if the options ask for that. Only one
// call gets nil, by the record's version.
func (p *Provider) release(ctx context.Context, s observed) error {
	err := p.Core.ConfigMaps(p.Namespace).Delete(ctx, s.name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &s.uid, ResourceVersion: &s.version},
	})
	if apierrors.IsConflict(err) {
		return err
	}
	if err != nil {
		return kube.Wrap(ctx, "delete "+s.name, err)
	}
	p.stopAgent(ctx, s)
	return p.forget(ctx, s)
}

// stopAgent stops the agent in the target. A target that cannot be reached has no
// running agent, or is being deleted.
func (p *Provider) stopAgent(ctx context.Context, s observed) {
	at, err := p.agentContainer(ctx, s)
	if err != nil {
		return
	}
	if n := readAnnotation(at.pod); n.serves(at.id) {
		_, err := p.executor.Run(ctx, p.at(at), []string{n.Program, "stop", "--dir", n.Dir}, nil)
		if err == nil {
			n.Stopped = true
			_, err = p.writeAnnotation(ctx, at, n)
		}
		if err != nil {
			p.Log.WarnContext(ctx, "the agent could not be stopped", "pod", at.pod.Name, "error", err)
		}
	}
}

// forget undoes the changes of an adoption to its target.
func (p *Provider) forget(ctx context.Context, s observed) error {
	t := *s.record.Target
	if s.uid != "" {
		err := p.Core.ConfigMaps(p.Namespace).Delete(ctx, s.name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &s.uid}})
		if err != nil && !apierrors.IsNotFound(err) {
			return kube.Wrap(ctx, "delete "+s.name, err)
		}
	}
	for {
		now, err := p.existing(ctx, t)
		switch {
		case apierrors.IsNotFound(err) || err == nil && now.meta.UID != t.UID:
			return nil
		case err != nil:
			return kube.Wrap(ctx, t.String(), err)
		case t.Delete:
			return p.deleteTarget(ctx, t, now)
		}
		if err := p.mark(ctx, t, now, map[string]any{annotationAdopted: nil}); !apierrors.IsConflict(err) || ctx.Err() != nil {
			return kube.Wrap(ctx, "unmark "+t.String(), err)
		}
	}
}

func (p *Provider) deleteTarget(ctx context.Context, t target, now existing) error {
	foreground := metav1.DeletePropagationForeground
	opts := metav1.DeleteOptions{PropagationPolicy: &foreground, Preconditions: &metav1.Preconditions{UID: &t.UID}}
	remove := p.sandboxes.delete
	if t.Kind == claimKind {
		remove = p.claims.delete
	}
	if err := remove(ctx, t.Name, opts); err != nil && !apierrors.IsNotFound(err) {
		return kube.Wrap(ctx, "delete "+t.String(), err)
	}
	pod, err := p.pod(ctx, observed{sandbox: now.sandbox})
	if err != nil {
		return err
	}
	if pod != nil {
		p.endPod(ctx, pod)
		if err := p.podGone(ctx, pod); err != nil {
			return err
		}
	}
	return kube.Follow(ctx, p.carrier(observed{record: record{Target: &t}}), func(now *unstructured.Unstructured, exists bool) (bool, error) {
		return !exists || now.GetUID() != t.UID, nil
	})
}

// writeAdopted merges fields into the metadata of a record.
func (p *Provider) writeAdopted(ctx context.Context, name string, meta map[string]any) error {
	data, err := json.Marshal(map[string]any{"metadata": meta})
	if err != nil {
		return err
	}
	_, err = p.Core.ConfigMaps(p.Namespace).Patch(ctx, name, types.MergePatchType, data, metav1.PatchOptions{})
	return err
}

// mergeAdopted adds to a page of claims the adopted sandboxes in its range of names:
// beyond after, and up to last where more claims follow.
func (p *Provider) mergeAdopted(ctx context.Context, q providers.Query, found []observed, after, last string, more bool) ([]observed, error) {
	maps, err := p.Core.ConfigMaps(p.Namespace).List(ctx, metav1.ListOptions{LabelSelector: recordSelector(kindAdopted, q)})
	if err != nil {
		return nil, kube.Wrap(ctx, "list ConfigMaps", err)
	}
	for i := range maps.Items {
		m := &maps.Items[i]
		if m.Name <= after || more && m.Name > last {
			continue
		}
		s, err := p.refreshAdopted(ctx, m)
		if errors.Is(err, providers.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		found = append(found, s)
	}
	slices.SortFunc(found, func(a, b observed) int { return strings.Compare(a.name, b.name) })
	return found, nil
}
