package kubernetes

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/kube"
	shared "github.com/sandgate/sandgate/providers/internal/record"
)

// networkNone is the policy of all sandboxes of a namespace that have no
// network, and networkProxy that of those with the network mode PROXY, who have none
// but through their agent. They are there before any of the pods. They are two, so
// that a server of an earlier version, which knows the first, leaves the second alone.
const (
	networkNone  = "sandgate-network-none"
	networkProxy = "sandgate-network-proxy"
)

// denying are the network modes whose sandboxes have a policy that denies everything.
var denying = map[providers.NetworkMode]string{providers.NetworkNone: networkNone, providers.NetworkProxy: networkProxy}

// networkFull is an operator's policy of sandboxes with the network "full", in
// the namespace of the records. Sandboxes with a namespace of their own get a
// copy of it.
const networkFull = "sandgate-network-full"

// policyTrust is how long a policy is not read again.
const policyTrust = 10 * time.Second

// prepare creates the objects that the pod needs.
func (p *Provider) prepare(ctx context.Context, name string, pl *plan, cm *corev1.ConfigMap, rec *record) error {
	if rec.OwnNamespace {
		if err := p.makeNamespace(ctx, name, pl, cm); err != nil {
			return err
		}
	}
	if err := p.copySecret(ctx, pl, cm, rec); err != nil {
		return err
	}
	if err := p.prepareNetwork(ctx, pl, rec.Namespace); err != nil {
		return err
	}
	for _, c := range pl.options.ClaimTemplates {
		if c.Retain {
			if err := p.makeClaim(ctx, pl, c, rec.Namespace); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *Provider) prepareNetwork(ctx context.Context, pl *plan, namespace string) error {
	if pl.spec.Network == providers.NetworkFull && namespace != p.Namespace {
		return p.copyPolicy(ctx, namespace)
	}
	if denying[pl.spec.Network] == "" {
		return nil
	}
	if namespace == p.Namespace {
		p.policyMu.Lock()
		defer p.policyMu.Unlock()
		if time.Since(p.policySeen[pl.spec.Network]) < policyTrust {
			return nil
		}
	}
	if err := p.ensurePolicy(ctx, namespace, pl.spec.Network); err != nil {
		return err
	}
	if namespace == p.Namespace {
		if p.policySeen == nil {
			p.policySeen = make(map[providers.NetworkMode]time.Time)
		}
		p.policySeen[pl.spec.Network] = time.Now()
	}
	return nil
}

// denyAll denies all traffic of sandboxes with a network mode, except the server's
// connections to agents that listen. An exec stream comes through the kubelet and is not network traffic of the pod.
func (p *Provider) denyAll(mode providers.NetworkMode) *networkingv1.NetworkPolicy {
	return &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: denying[mode], Labels: map[string]string{managedBy: managedByValue}},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{
				managedBy: managedByValue, labelNetwork: mode.String(),
			}},
			Ingress:     p.ingressRules(),
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress},
		},
	}
}

func (p *Provider) ensurePolicy(ctx context.Context, namespace string, mode providers.NetworkMode) error {
	policies := p.client.NetworkingV1().NetworkPolicies(namespace)
	want := p.denyAll(mode)
	have, err := policies.Get(ctx, want.Name, getOptions)
	switch {
	case apierrors.IsNotFound(err):
		_, err = policies.Create(ctx, want, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			err = nil
		}
	case err == nil && !equality.Semantic.DeepEqual(have.Spec, want.Spec):
		have.Spec = want.Spec
		_, err = policies.Update(ctx, have, metav1.UpdateOptions{})
	}
	return kube.WrapCreate(ctx, fmt.Sprintf("make the network policy of sandboxes with network %v", mode), err)
}

// copyPolicy puts the policy of sandboxes with the network "full", if there is
// one, into a sandbox's own namespace.
func (p *Provider) copyPolicy(ctx context.Context, namespace string) error {
	have, err := p.client.NetworkingV1().NetworkPolicies(p.Namespace).Get(ctx, networkFull, getOptions)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err == nil {
		_, err = p.client.NetworkingV1().NetworkPolicies(namespace).Create(ctx, &networkingv1.NetworkPolicy{
			ObjectMeta: metav1.ObjectMeta{Name: networkFull, Labels: map[string]string{managedBy: managedByValue}}, Spec: have.Spec,
		}, metav1.CreateOptions{})
	}
	return kube.WrapCreate(ctx, "copy the network policy "+networkFull, err)
}

// makeClaim makes a volume that outlives the sandbox, or finds the one of a
// sandbox that had the same name.
func (p *Provider) makeClaim(ctx context.Context, pl *plan, c claimTemplate, namespace string) error {
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Name: pl.claimName(c), Labels: podLabels(pl.pod, pl.spec.Tenant, pl.spec.Template, nil),
			Annotations: map[string]string{annotationID: pl.spec.ID, annotationTenant: pl.spec.Tenant},
		},
		Spec: c.spec(),
	}
	claims := p.Core.PersistentVolumeClaims(namespace)
	_, err := claims.Create(ctx, claim, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		return kube.WrapCreate(ctx, "make the volume "+c.Name, err)
	}
	have, err := claims.Get(ctx, claim.Name, getOptions)
	if err != nil {
		return kube.WrapCreate(ctx, "find the volume "+c.Name, err)
	}
	if have.Labels[labelName] != pl.pod || have.Labels[labelTenant] != shared.Digest(pl.spec.Tenant) {
		return fmt.Errorf("the volume claim %s is not this sandbox's: %w", claim.Name, providers.ErrForbidden)
	}
	return nil
}

// makeNamespace makes the sandbox's own namespace with its limits.
func (p *Provider) makeNamespace(ctx context.Context, name string, pl *plan, cm *corev1.ConfigMap) error {
	labels := podLabels(name, pl.spec.Tenant, pl.spec.Template, nil)
	labels[labelKind] = kindSandbox
	// The floor holds there also for a server that was taken over.
	labels["pod-security.kubernetes.io/enforce"] = "restricted"
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: name, Labels: labels,
		Annotations: map[string]string{annotationID: pl.spec.ID, annotationTenant: pl.spec.Tenant, annotationRecord: string(cm.UID)},
	}}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
	defer cancel()
	if _, err := p.Core.Namespaces().Create(ctx, namespace, metav1.CreateOptions{}); err != nil {
		return kube.WrapCreate(ctx, "make the sandbox's namespace", err)
	}
	meta := metav1.ObjectMeta{Name: "sandgate", Labels: map[string]string{managedBy: managedByValue}}
	if pl.options.NamespaceQuota != nil {
		quota := &corev1.ResourceQuota{ObjectMeta: meta, Spec: corev1.ResourceQuotaSpec{Hard: pl.options.NamespaceQuota}}
		if _, err := p.Core.ResourceQuotas(name).Create(ctx, quota, metav1.CreateOptions{}); err != nil {
			return kube.WrapCreate(ctx, "make the namespace's quota", err)
		}
		if err := p.awaitQuota(ctx, name, quota); err != nil {
			return err
		}
	}
	if pl.options.NamespaceLimits != nil {
		limits := &corev1.LimitRange{ObjectMeta: meta, Spec: corev1.LimitRangeSpec{Limits: pl.options.NamespaceLimits}}
		if _, err := p.Core.LimitRanges(name).Create(ctx, limits, metav1.CreateOptions{}); err != nil {
			return kube.WrapCreate(ctx, "make the namespace's limits", err)
		}
	}
	return p.awaitServiceAccount(ctx, name, pl)
}

// awaitQuota waits until the cluster has counted a quota. Admission may not know
// the quota before that, and would let a pod pass.
func (p *Provider) awaitQuota(ctx context.Context, namespace string, quota *corev1.ResourceQuota) error {
	quotas := p.Core.ResourceQuotas(namespace)
	err := kube.Follow(ctx, kube.Object[*corev1.ResourceQuota]{Name: quota.Name, Get: quotas.Get, Watch: quotas.Watch},
		func(now *corev1.ResourceQuota, exists bool) (bool, error) {
			return exists && len(now.Status.Hard) >= len(quota.Spec.Hard), nil
		})
	if err != nil {
		return fmt.Errorf("the quota of the sandbox's namespace: %w: %w", err, providers.ErrStartFailed)
	}
	return nil
}

// awaitServiceAccount waits for what the cluster puts into a new namespace and
// admission of a pod asks for.
func (p *Provider) awaitServiceAccount(ctx context.Context, namespace string, pl *plan) error {
	account := pl.options.ServiceAccount
	if account == "" {
		account = defaultAccount
	}
	accounts := p.Core.ServiceAccounts(namespace)
	err := kube.Follow(ctx, kube.Object[*corev1.ServiceAccount]{Name: account, Get: accounts.Get, Watch: accounts.Watch},
		func(_ *corev1.ServiceAccount, exists bool) (bool, error) { return exists, nil })
	if err != nil {
		return fmt.Errorf("the service account %q of the sandbox's namespace: %w: %w", account, err, providers.ErrStartFailed)
	}
	return nil
}

// deleteNamespace deletes the sandbox's own namespace, if it is this sandbox's,
// and returns when it is gone with all that was in it.
func (p *Provider) deleteNamespace(ctx context.Context, cm *corev1.ConfigMap, rec *record) error {
	namespaces := p.Core.Namespaces()
	have, err := namespaces.Get(ctx, rec.Namespace, getOptions)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return kube.Wrap(ctx, "find the sandbox's namespace", err)
	}
	if have.Annotations[annotationRecord] != string(cm.UID) {
		return nil
	}
	err = namespaces.Delete(ctx, have.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &have.UID}})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return kube.Wrap(ctx, "delete the sandbox's namespace", err)
	}
	return kube.Follow(ctx, kube.Object[*corev1.Namespace]{Name: have.Name, Get: namespaces.Get, Watch: namespaces.Watch},
		func(now *corev1.Namespace, exists bool) (bool, error) { return !exists || now.UID != have.UID, nil })
}
