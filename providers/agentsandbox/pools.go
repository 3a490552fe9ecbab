package agentsandbox

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/kube"
	"github.com/sandgate/sandgate/providers/internal/pool"
	shared "github.com/sandgate/sandgate/providers/internal/record"
)

// poolFor names the pool for a claim: the operator's where the template names
// one, else the one that is kept for such specs, else one without started
// sandboxes, which is made where there is none.
func (p *Provider) poolFor(ctx context.Context, spec providers.Spec, o options) (string, error) {
	if o.Pool != "" {
		return o.Pool, p.operatorsPool(ctx, spec.Template, o.Pool)
	}
	kept := keptPool(spec)
	pool, err := p.pools.get(ctx, kept)
	if err == nil && pool.Labels[labelKept] != "" && pool.DeletionTimestamp == nil {
		return kept, nil
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return "", kube.Wrap(ctx, "pool of template "+spec.Template, err)
	}
	cold := coldPool(o.SandboxTemplate)
	if _, known := p.known.Load(cold); known {
		return cold, nil
	}
	if _, err := p.templates.get(ctx, o.SandboxTemplate); err != nil {
		if apierrors.IsNotFound(err) {
			return "", fmt.Errorf("template %q: there is no SandboxTemplate %s in namespace %s: %w", spec.Template, o.SandboxTemplate, p.Namespace, providers.ErrStartFailed)
		}
		return "", kube.Wrap(ctx, "SandboxTemplate "+o.SandboxTemplate, err)
	}
	none := int32(0)
	w := p.newPool(cold, o.SandboxTemplate, &none)
	if _, err := p.pools.create(ctx, w); err != nil && !apierrors.IsAlreadyExists(err) {
		return "", kube.WrapCreate(ctx, "make a pool for SandboxTemplate "+o.SandboxTemplate, err)
	}
	p.known.Store(cold, true)
	return cold, nil
}

// operatorsPool makes sure, once, that a pool is there which a template names.
func (p *Provider) operatorsPool(ctx context.Context, template, name string) error {
	if _, known := p.known.Load(name); known {
		return nil
	}
	_, err := p.pools.get(ctx, name)
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("template %q: there is no SandboxWarmPool %s in namespace %s: %w", template, name, p.Namespace, providers.ErrStartFailed)
	}
	if err != nil {
		return kube.Wrap(ctx, "SandboxWarmPool "+name, err)
	}
	p.known.Store(name, true)
	return nil
}

func (p *Provider) newPool(name, sandboxTemplate string, replicas *int32) *warmPool {
	w := &warmPool{ObjectMeta: metav1.ObjectMeta{
		Name: name, Namespace: p.Namespace,
		Labels: map[string]string{managedBy: managedByValue, labelKind: kindPool},
	}}
	w.Spec.Replicas, w.Spec.SandboxTemplateRef.Name = replicas, sandboxTemplate
	return w
}

// KeepPools makes a SandboxWarmPool for each template that names a
// SandboxTemplate. A template that names an operator's pool keeps that one as it
// is; its unclaimed pods get their agent ahead of time as well.
func (p *Provider) KeepPools(ctx context.Context, pools []providers.Pool) error {
	var wanted []keptFor
	err := pool.Check(pools, func(want providers.Pool) error {
		k, err := p.checkPool(want)
		wanted = append(wanted, k)
		return err
	})
	if err != nil {
		return err
	}
	for _, k := range wanted {
		if err := p.keep(ctx, k); err != nil {
			return fmt.Errorf("pool of template %q: %w", k.pool.Template, err)
		}
	}
	if err := p.dropOthers(ctx, wanted); err != nil {
		return err
	}
	p.poolInjector.set(wanted)
	return nil
}

// keptFor is a pool that is kept, and what its sandboxes are for.
type keptFor struct {
	pool    providers.Pool
	options options
	name    string // of the SandboxWarmPool
}

func (p *Provider) checkPool(want providers.Pool) (keptFor, error) {
	k := keptFor{pool: want}
	var err error
	if k.options, err = decodeOptions(want.Spec); err != nil {
		return k, err
	}
	switch {
	case k.options.adopts():
		return k, errors.New("what exists already has no pool")
	case len(want.Spec.Env) > 0:
		return k, errors.New("a sandbox with env is never started ahead of time; put it into the SandboxTemplate")
	case len(k.options.VolumeClaimTemplates) > 0:
		return k, errors.New("a sandbox with volume_claim_templates is never started ahead of time; put them into the SandboxTemplate")
	}
	k.name = k.options.Pool
	if k.name == "" {
		k.name = keptPool(want.Spec)
	}
	return k, nil
}

// keep makes the pool or sets its size.
func (p *Provider) keep(ctx context.Context, k keptFor) error {
	if k.options.Pool != "" {
		_, err := p.pools.get(ctx, k.name)
		return kube.Wrap(ctx, "SandboxWarmPool "+k.name, err)
	}
	target := int32(k.pool.Target)
	w := p.newPool(k.name, k.options.SandboxTemplate, &target)
	w.Labels[labelKept], w.Labels[labelTemplate] = "yes", shared.Digest(k.pool.Template)
	w.Annotations = map[string]string{annotationTemplate: k.pool.Template}
	_, err := p.pools.create(ctx, w)
	if !apierrors.IsAlreadyExists(err) {
		return kube.WrapCreate(ctx, "make SandboxWarmPool "+k.name, err)
	}
	_, err = p.pools.patch(ctx, k.name, map[string]any{
		"metadata": map[string]any{"labels": w.Labels, "annotations": w.Annotations},
		"spec":     map[string]any{"replicas": target},
	})
	return kube.Wrap(ctx, "resize SandboxWarmPool "+k.name, err)
}

// dropOthers ends Sandgate's pools that are no longer kept. A pool that claims
// came from stays, empty: the controller looks their template up through it.
func (p *Provider) dropOthers(ctx context.Context, wanted []keptFor) error {
	keep := make(map[string]bool)
	for _, k := range wanted {
		keep[k.name] = true
	}
	all, _, err := p.pools.list(ctx, metav1.ListOptions{LabelSelector: labels.Set{
		managedBy: managedByValue, labelKind: kindPool,
	}.String() + "," + labelTemplate})
	if err != nil {
		return kube.Wrap(ctx, "list pools", err)
	}
	for _, w := range all {
		if keep[w.Name] {
			continue
		}
		used, _, err := p.claims.list(ctx, metav1.ListOptions{Limit: 1, LabelSelector: labels.Set{labelPool: shared.Digest(w.Name)}.String()})
		if err != nil {
			return kube.Wrap(ctx, "list claims of pool "+w.Name, err)
		}
		if len(used) == 0 {
			err = p.pools.delete(ctx, w.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &w.UID}})
		} else {
			_, err = p.pools.patch(ctx, w.Name, map[string]any{
				"metadata": map[string]any{"labels": map[string]any{labelKept: nil}},
				"spec":     map[string]any{"replicas": 0},
			})
		}
		if err != nil && !apierrors.IsNotFound(err) {
			return kube.Wrap(ctx, "drop pool "+w.Name, err)
		}
	}
	return nil
}

// PoolStatus counts the pods of the template's pool, and the claims on it.
func (p *Provider) PoolStatus(ctx context.Context, template string) (providers.PoolStatus, error) {
	w, err := p.poolOf(ctx, template)
	if err != nil {
		return providers.PoolStatus{}, err
	}
	var out providers.PoolStatus
	if w.Spec.Replicas != nil {
		out.Target = int(*w.Spec.Replicas)
	}
	unclaimed, err := p.unclaimed(ctx, w)
	if err != nil {
		return out, err
	}
	for _, pod := range unclaimed {
		if podReady(&pod) {
			out.Available++
		}
	}
	for opts := (metav1.ListOptions{Limit: 500, LabelSelector: labels.Set{labelPool: shared.Digest(w.Name)}.String()}); ; {
		claims, next, err := p.claims.list(ctx, opts)
		if err != nil {
			return out, kube.Wrap(ctx, "list claims of pool "+w.Name, err)
		}
		for _, c := range claims {
			if c.DeletionTimestamp == nil && ofClaim(c).fromPool {
				out.Active++
			}
		}
		if next == "" {
			break
		}
		opts.Continue = next
	}
	out.Total = out.Active + len(unclaimed)
	return out, nil
}

// poolOf finds the pool that is kept for a template, by whichever server.
func (p *Provider) poolOf(ctx context.Context, template string) (*warmPool, error) {
	if k, ok := p.poolInjector.of(template); ok && k.options.Pool != "" {
		w, err := p.pools.get(ctx, k.name)
		return w, kube.Wrap(ctx, "SandboxWarmPool "+k.name, err)
	}
	kept, _, err := p.pools.list(ctx, metav1.ListOptions{LabelSelector: labels.Set{
		managedBy: managedByValue, labelKind: kindPool, labelKept: "yes", labelTemplate: shared.Digest(template),
	}.String()})
	if err != nil {
		return nil, kube.Wrap(ctx, "list pools", err)
	}
	for _, w := range kept {
		if w.DeletionTimestamp == nil {
			return w, nil
		}
	}
	return nil, fmt.Errorf("template %q has no pool: %w", template, providers.ErrNotFound)
}
