package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/kube"
	shared "github.com/sandgate/sandgate/providers/internal/record"
	"github.com/sandgate/sandgate/streaming/sealed"
)

// cleanupTimeout bounds what undoes a failed creation.
const cleanupTimeout = 30 * time.Second

// Create claims a pod of the template's pool, or makes one.
func (p *Provider) Create(ctx context.Context, name string, spec providers.Spec) (providers.Info, net.Conn, error) {
	pl, err := p.plan(name, spec)
	if err != nil {
		return providers.Info{}, nil, err
	}
	for {
		if ctx.Err() != nil {
			return providers.Info{}, nil, fmt.Errorf("create %s: %w", name, context.Cause(ctx))
		}
		cm, rec, err := p.beginRecord(ctx, name, pl)
		if err == nil {
			return p.build(ctx, name, pl, cm, rec)
		}
		if !apierrors.IsAlreadyExists(err) {
			return providers.Info{}, nil, kube.WrapCreate(ctx, "make the sandbox's record", err)
		}
		info, again, err := p.join(ctx, name, spec)
		if !again {
			return info, nil, err
		}
	}
}

// plan checks the spec and makes what the pod is made from.
func (p *Provider) plan(pod string, spec providers.Spec) (*plan, error) {
	o, err := decodeOptions(spec)
	if err != nil {
		return nil, err
	}
	// Whoever calls, no pod is without limits.
	spec.Resources = withLimits(spec.Resources)
	pl := &plan{config: &p.config, spec: spec, options: o, pod: pod, ownAccount: p.account}
	if len(spec.Env) > 0 || pl.listens() {
		pl.secret, pl.agentSecret = newSecretName(pod), sealed.NewSecret()
	}
	// A template that cannot be is found out before anything is made.
	if err := pl.finish(pl.makePod()); err != nil {
		return nil, err
	}
	return pl, nil
}

// beginRecord makes the record, whose name only one can have. The answer is
// waited for: a record that was made and is not known of would stay.
func (p *Provider) beginRecord(ctx context.Context, name string, pl *plan) (*corev1.ConfigMap, *record, error) {
	rec := &record{
		Sandbox: shared.New(pl.spec), Phase: phaseCreating, Owner: newOwner(), Namespace: p.Namespace,
		OwnNamespace: pl.options.NamespacePerSandbox, WritableRoot: pl.options.WritableRoot, Runtime: pl.runtime(),
		NotEnforced: p.notEnforced(pl),
	}
	if rec.OwnNamespace {
		rec.Namespace = name
	}
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if err := rec.put(cm); err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
	defer cancel()
	cm, err := p.records().Create(ctx, cm, metav1.CreateOptions{})
	return cm, rec, err
}

// join answers for a sandbox whose record is there already, or says to try
// again.
func (p *Provider) join(ctx context.Context, name string, spec providers.Spec) (info providers.Info, again bool, err error) {
	cm, rec, err := p.read(ctx, name)
	switch {
	case errors.Is(err, errForeign):
		return providers.Info{}, false, fmt.Errorf("create %s: the namespace has a ConfigMap of this name that is no sandbox's: %w", name, providers.ErrStartFailed)
	case errors.Is(err, providers.ErrNotFound):
		return providers.Info{}, true, nil
	case err != nil:
		return providers.Info{}, false, err
	case rec.Phase == phaseDeleting:
		stale, err := p.await(ctx, name, phaseDeleting)
		if err == nil && stale {
			_, err = p.takeOver(ctx, cm.Name, phaseDeleting)
		}
		return providers.Info{}, err == nil, err
	case rec.Spec.Hash != spec.Hash:
		return providers.Info{}, false, fmt.Errorf("sandbox %s: %w", name, providers.ErrExists)
	case rec.Phase == phaseCreating:
		stale, err := p.await(ctx, name, phaseCreating)
		if err == nil && stale {
			_, err = p.takeOver(ctx, cm.Name, phaseCreating)
		}
		return providers.Info{}, err == nil, err
	}
	info, err = p.info(ctx, name, rec)
	if err == nil && info.State != providers.StateActive {
		err = providers.NotActive(info, "sandbox %q has ended (%s) and must be deleted first", rec.Spec.ID, info.Message)
	}
	return info, false, err
}

// build makes the sandbox of a record that this call has begun. On an error
// nothing is left.
func (p *Provider) build(ctx context.Context, name string, pl *plan, cm *corev1.ConfigMap, rec *record) (providers.Info, net.Conn, error) {
	owned, h := p.own(ctx, cm, rec, rec.Owner)
	conn, err := p.start(owned, name, pl, h)
	if err == nil {
		err = h.change(ctx, func(r *record) {
			r.Phase = phaseActive
			// The wait was not the caller's idleness.
			r.LastActivity = time.Now()
		})
		if err != nil {
			err = errors.Join(err, conn.Close())
		}
	}
	if err == nil && ctx.Err() != nil {
		err = errors.Join(fmt.Errorf("create %s: %w", name, context.Cause(ctx)), conn.Close())
	}
	if err != nil {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
		defer cancel()
		if !errors.Is(err, errTakenOver) {
			err = errors.Join(err, p.undo(clean, h))
		}
		h.release()
		return providers.Info{}, nil, err
	}
	h.release()
	_, rec = h.now()
	info := p.infoOf(name, rec)
	info.State, info.Created, info.Transport = providers.StateActive, true, string(kube.TransportOf(conn))
	return info, conn, nil
}

// start brings a pod to the point where its agent has spoken.
func (p *Provider) start(ctx context.Context, name string, pl *plan, h *ownership) (net.Conn, error) {
	if pl.poolable() {
		conn, err := p.claim(ctx, name, pl, h)
		if conn != nil || err != nil {
			return conn, err
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, pl.options.startTimeout(), errSlowStart)
	defer cancel()
	cm, rec := h.now()
	if err := p.prepare(ctx, name, pl, cm, rec); err != nil {
		return nil, err
	}
	labels := podLabels(name, pl.spec.Tenant, pl.spec.Template, pl.spec.Labels)
	pod, err := p.makePod(ctx, pl, rec.Namespace, labels, p.ownerIn(rec, cm))
	if err != nil {
		return nil, err
	}
	if err := h.change(ctx, func(r *record) { r.Pod, r.UID = pod.Name, pod.UID }); err != nil {
		return nil, err
	}
	return p.bringUp(ctx, pl, pod)
}

// ownerIn is the owner of objects beside the record; no object can own another
// namespace's.
func (p *Provider) ownerIn(rec *record, cm *corev1.ConfigMap) []metav1.OwnerReference {
	if rec.Namespace != cm.Namespace {
		return nil
	}
	return owner(cm)
}

// makePod makes the pod, and the secret that it refers to. The answers are
// waited for. The secret of a pod that was refused is deleted: its owner may live
// on.
func (p *Provider) makePod(ctx context.Context, pl *plan, namespace string, labels map[string]string, owners []metav1.OwnerReference) (*corev1.Pod, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
	defer cancel()
	if pl.secret != "" {
		secret := &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: pl.secret, OwnerReferences: owners, Labels: map[string]string{managedBy: managedByValue}},
			StringData: pl.secretData(), Immutable: new(true),
		}
		if _, err := p.Core.Secrets(namespace).Create(ctx, secret, metav1.CreateOptions{}); err != nil {
			return nil, kube.WrapCreate(ctx, "make the secret of the sandbox's pod", err)
		}
	}
	pod := pl.makePod()
	if err := pl.finish(pod); err != nil {
		return nil, err
	}
	pod.OwnerReferences = owners
	if pod.Labels == nil {
		pod.Labels = map[string]string{}
	}
	for k, v := range labels {
		pod.Labels[k] = v
	}
	pod.Labels[labelNetwork] = pl.spec.Network.String()
	made, err := p.pods(namespace).Create(ctx, pod, metav1.CreateOptions{})
	var refusal apierrors.APIStatus
	if errors.As(err, &refusal) && pl.secret != "" {
		if left := p.Core.Secrets(namespace).Delete(ctx, pl.secret, metav1.DeleteOptions{}); left != nil {
			p.Log.WarnContext(ctx, "the secret of a refused pod is left", "secret", pl.secret, "error", left)
		}
	}
	return made, kube.WrapCreate(ctx, "make the sandbox's pod", err)
}

// poolable reports whether a pool's pod can do.
func (pl *plan) poolable() bool { return !pl.options.NamespacePerSandbox && !pl.options.retains() }

func (pl *plan) runtime() string {
	if pl.options.RuntimeClassName != "" {
		return "kubernetes/" + pl.options.RuntimeClassName
	}
	return "kubernetes"
}

// notEnforced names the protections that this spec asks for and the cluster may
// not give.
func (p *Provider) notEnforced(pl *plan) []string {
	var out []string
	if pl.spec.Network != providers.NetworkFull && !p.network().Enforced {
		out = append(out, protectionNetwork)
	}
	if limit := int64(pl.spec.Resources.MaxProcesses); limit > 0 && (p.config.PodPidsLimit == 0 || p.config.PodPidsLimit > limit) {
		out = append(out, "processes")
	}
	slices.Sort(out)
	return out
}

// unenforced returns those of a record. That of the network may have been verified
// since; servers of earlier versions report it as it was recorded.
func (p *Provider) unenforced(rec *record) []string {
	out := slices.DeleteFunc(slices.Clone(rec.NotEnforced), func(name string) bool { return name == protectionNetwork })
	if rec.Spec.Network != providers.NetworkFull && !p.network().Enforced {
		out = append(out, protectionNetwork)
	}
	slices.Sort(out)
	return out
}
