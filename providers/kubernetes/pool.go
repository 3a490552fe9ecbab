package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/kube"
	"github.com/sandgate/sandgate/providers/internal/pool"
)

const (
	// poolIdleInterval is the time between two looks at a pool that is at its
	// target, since a watch reports its changes.
	poolIdleInterval = 30 * time.Second
	// refillDelay lets the first commands of a sandbox run before another pod is
	// started in its place.
	refillDelay = 250 * time.Millisecond
	// watchRetry is the time between two watches of a pool.
	watchRetry = 2 * time.Second
)

// newPools returns the controller of the pools. One server fills each of them.
func (p *Provider) newPools() *pool.Controller[*corev1.Pod, *podClaim] {
	return pool.New(poolDriver{p}, pool.Config{
		Log: p.Log, Check: p.checkPool, Lead: p.leadPool, Drained: p.deletePoolRecords,
		IdleInterval: poolIdleInterval, RefillDelay: refillDelay,
	})
}

func (p *Provider) checkPool(want providers.Pool) error {
	pl, err := p.plan("pool", want.Spec)
	if err == nil && !pl.poolable() {
		err = errors.New("namespace_per_sandbox and claim_templates with retain need the sandbox's name, which a pool's pod has not")
	}
	return err
}

// KeepPools drops the pods that no pool needs before it returns, as far as the
// cluster lets it.
func (p *Provider) KeepPools(ctx context.Context, pools []providers.Pool) error {
	return p.pools.Keep(ctx, pools)
}

// deletePoolRecords deletes the records of other pools than these, and with them
// the unclaimed pods that they own. A record stays while a claimed pod runs: it
// owns the secret of that pod's agent.
func (p *Provider) deletePoolRecords(ctx context.Context, kept []providers.Pool) error {
	var keys []string
	for _, want := range kept {
		key, err := p.poolKey(want.Spec)
		if err != nil {
			return err
		}
		keys = append(keys, key)
	}
	list, err := p.records().List(ctx, metav1.ListOptions{LabelSelector: labels.Set{managedBy: managedByValue, labelKind: kindPool}.String()})
	if err != nil {
		return kube.Wrap(ctx, "list pools", err)
	}
	for i := range list.Items {
		cm := &list.Items[i]
		if slices.Contains(keys, cm.Labels[labelPool]) {
			continue
		}
		claimed, err := p.listPods(ctx, labels.Set{labelPool: cm.Labels[labelPool], labelUse: useClaimed}.String(), false)
		if err != nil {
			return err
		}
		if len(claimed) > 0 {
			continue
		}
		err = p.records().Delete(ctx, cm.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &cm.UID}})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return kube.Wrap(ctx, "delete a pool", err)
		}
	}
	return nil
}

// PoolStatus counts a pool's pods.
func (p *Provider) PoolStatus(ctx context.Context, template string) (providers.PoolStatus, error) {
	status, err := p.pools.Status(ctx, template)
	if err != nil {
		return providers.PoolStatus{}, err
	}
	want, err := p.pools.Pool(template)
	if err != nil {
		return providers.PoolStatus{}, err
	}
	key, err := p.poolKey(want.Spec)
	if err != nil {
		return providers.PoolStatus{}, err
	}
	list, err := p.listPods(ctx, labels.Set{labelPool: key, labelUse: useClaimed}.String(), true)
	if err != nil {
		return providers.PoolStatus{}, err
	}
	for i := range list {
		if alive(&list[i]) {
			status.Active++
		}
	}
	status.Total += status.Active
	return status, nil
}

// poolDriver is the namespace as its pools see it. A member is a pod that has the
// pool's key as a label and is owned by the pool's record.
type poolDriver struct{ p *Provider }

// Start leaves the pod behind when ctx ends. The next leader drops it, since it
// has not started it.
func (d poolDriver) Start(ctx context.Context, want providers.Pool, name string) error {
	p := d.p
	key, err := p.poolKey(want.Spec)
	if err != nil {
		return err
	}
	pl, err := p.plan("sgp-"+key[:8]+"-"+name, want.Spec)
	if err != nil {
		return err
	}
	if err := p.prepareNetwork(ctx, pl, p.Namespace); err != nil {
		return err
	}
	cm, err := p.poolRecord(ctx, key, want.Template)
	if err != nil {
		return err
	}
	pod, err := p.makePod(ctx, pl, p.Namespace, map[string]string{
		managedBy: managedByValue, labelPool: key, labelUse: useStarting,
	}, owner(cm))
	if err != nil {
		return err
	}
	limited, cancel := context.WithTimeoutCause(ctx, pl.options.startTimeout(), errSlowStart)
	defer cancel()
	conn, err := p.bringUp(limited, pl, pod)
	if err == nil {
		// An agent closes a silent connection.
		_ = conn.Close()
		err = p.markReady(ctx, pod)
	}
	if err != nil && ctx.Err() == nil {
		err = errors.Join(err, p.deletePod(ctx, pod))
	}
	return err
}

// Unclaimed leaves out the pods that are being deleted.
func (d poolDriver) Unclaimed(ctx context.Context, spec *providers.Spec, cached bool) iter.Seq2[pool.Member[*corev1.Pod], error] {
	return func(yield func(pool.Member[*corev1.Pod], error) bool) {
		of := labelPool
		if spec != nil {
			key, err := d.p.poolKey(*spec)
			if err != nil {
				yield(pool.Member[*corev1.Pod]{}, err)
				return
			}
			of += "=" + key
		}
		list, err := d.p.listPods(ctx, of+","+labelUse+" in ("+useReady+","+useStarting+")", cached)
		if err != nil {
			yield(pool.Member[*corev1.Pod]{}, err)
			return
		}
		// Servers that claim at the same time should not try the same ones.
		rand.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		for i := range list {
			pod := &list[i]
			if pod.DeletionTimestamp != nil {
				continue
			}
			m := pool.Member[*corev1.Pod]{
				Name: pod.Name[strings.LastIndexByte(pod.Name, '-')+1:], Created: pod.CreationTimestamp.Time, Value: pod,
			}
			switch {
			case !alive(pod):
				m.State = pool.Broken
			case pod.Labels[labelUse] == useStarting:
				m.State = pool.Starting
			}
			if !yield(m, nil) {
				return
			}
		}
	}
}

// Claim returns nil for a pod whose agent does not answer, and deletes it.
func (d poolDriver) Claim(ctx context.Context, pod *corev1.Pod, c *podClaim) (net.Conn, error) {
	p := d.p
	if !usable(pod) {
		return nil, nil
	}
	cm, _ := c.owner.now()
	won, err := p.take(ctx, c.name, c.plan, pod, cm)
	if err != nil || !won {
		return nil, err
	}
	// If this write is lost, the sweeper and deletions find the pod by its label.
	c.owner.along(func(r *record) { r.Pod, r.UID, r.FromPool = pod.Name, pod.UID, true })
	conn, err := p.open(ctx, pod)
	if err == nil {
		return conn, nil
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("reach the agent: %w", context.Cause(ctx))
	}
	if kube.OutOfReach(err) {
		return nil, fmt.Errorf("reach the agent: %w", err) // as with any other pod
	}
	p.Log.WarnContext(ctx, "a pool's pod does not answer and is deleted", "pod", pod.Name, "error", err)
	if err := p.deletePod(ctx, pod); err != nil {
		return nil, err
	}
	return nil, c.owner.change(ctx, func(r *record) { r.Pod, r.UID, r.FromPool = "", "", false })
}

// Drop deletes a pod unless it is claimed: its version is the condition.
func (d poolDriver) Drop(ctx context.Context, m pool.Member[*corev1.Pod]) error {
	pod := m.Value
	err := d.p.pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &pod.UID, ResourceVersion: &pod.ResourceVersion},
	})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	if err == nil {
		return d.p.deleteSecret(ctx, pod)
	}
	return kube.Wrap(ctx, "delete a pool's pod", err)
}

// listPods lists the pods of pools. With cached set, the answer may be some
// milliseconds old.
func (p *Provider) listPods(ctx context.Context, selector string, cached bool) ([]corev1.Pod, error) {
	opts := metav1.ListOptions{LabelSelector: labels.Set{managedBy: managedByValue}.String() + "," + selector}
	if cached {
		opts.ResourceVersion = kube.FromCache
	}
	list, err := p.pods(p.Namespace).List(ctx, opts)
	if err != nil {
		return nil, kube.Wrap(ctx, "list a pool's pods", err)
	}
	return list.Items, nil
}

// alive reports whether a pod has not ended and is not about to.
func alive(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && kube.Ended(pod, "") == nil && kube.Ended(pod, containerName) == nil
}

// leadPool calls do while this server holds the lease of the pool, and watches the
// pool meanwhile. The lease goes with the pool's record.
func (p *Provider) leadPool(ctx context.Context, want providers.Pool, do func(context.Context)) {
	key, err := p.poolKey(want.Spec)
	if err != nil {
		p.Log.ErrorContext(ctx, "a pool cannot be filled", "template", want.Template, "error", err)
		return
	}
	p.Lease(poolName(key)).Lead(ctx, func(ctx context.Context) {
		cm, err := p.poolRecord(ctx, key, want.Template)
		if err == nil {
			err = p.ownLease(ctx, cm)
		}
		p.warnOfLease(ctx, want.Template, err)
		var watching sync.WaitGroup
		defer watching.Wait()
		watching.Go(func() { p.watchPool(ctx, key) })
		do(ctx)
	})
}

// poolName is the name of a pool's record and of its lease.
func poolName(key string) string { return "sgpool-" + key }

func (p *Provider) warnOfLease(ctx context.Context, template string, err error) {
	if err != nil && ctx.Err() == nil {
		p.Log.LogAttrs(ctx, slog.LevelWarn, "the lease of a pool has no owner yet", slog.String("template", template), slog.Any("error", err))
	}
}

// poolRecord returns the ConfigMap that owns a pool's unclaimed pods and its lease.
// Another server may have deleted it together with the lease: after making it,
// poolRecord gives it the lease.
func (p *Provider) poolRecord(ctx context.Context, key, template string) (*corev1.ConfigMap, error) {
	cm, err := p.records().Get(ctx, poolName(key), getOptions)
	if apierrors.IsNotFound(err) {
		cm, err = p.records().Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: poolName(key), Labels: map[string]string{
				managedBy: managedByValue, labelKind: kindPool, labelPool: key,
			}},
			Data: map[string]string{"template": template},
		}, metav1.CreateOptions{})
		switch {
		case apierrors.IsAlreadyExists(err):
			cm, err = p.records().Get(ctx, poolName(key), getOptions)
		case err == nil:
			p.warnOfLease(ctx, template, p.ownLease(ctx, cm))
		}
	}
	return cm, kube.Wrap(ctx, "the pool's record", err)
}

// leaseBackoff outlasts the time in which the leader makes a deleted lease anew.
var leaseBackoff = wait.Backoff{Duration: time.Second, Steps: 5}

// ownLease makes the pool's record the owner of its lease, so that the cluster
// deletes both.
func (p *Provider) ownLease(ctx context.Context, cm *corev1.ConfigMap) error {
	leases := p.Leases.Leases(p.Namespace)
	again := func(err error) bool {
		return ctx.Err() == nil && (apierrors.IsConflict(err) || apierrors.IsNotFound(err))
	}
	err := retry.OnError(leaseBackoff, again, func() error {
		lease, err := leases.Get(ctx, cm.Name, getOptions)
		if err != nil || slices.ContainsFunc(lease.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == cm.UID }) {
			return err
		}
		lease.OwnerReferences = owner(cm)
		_, err = leases.Update(ctx, lease, metav1.UpdateOptions{})
		return err
	})
	return kube.Wrap(ctx, "lease of a pool", err)
}

// watchPool reports changes of a pool's unclaimed pods until ctx ends.
func (p *Provider) watchPool(ctx context.Context, key string) {
	opts := metav1.ListOptions{LabelSelector: labels.Set{managedBy: managedByValue, labelPool: key}.String() +
		"," + labelUse + " in (" + useReady + "," + useStarting + ")"}
	for {
		p.pools.Changed()
		if w, err := p.pods(p.Namespace).Watch(ctx, opts); err == nil {
			for range w.ResultChan() {
				p.pools.Changed()
			}
			w.Stop()
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(watchRetry):
		}
	}
}
