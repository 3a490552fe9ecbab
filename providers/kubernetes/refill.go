package kubernetes

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sandgate/sandgate/providers/internal/kube"
)

const (
	poolInterval = 2 * time.Second
	// poolLook is how often a pool is looked at in which nothing seems to change.
	poolLook       = 30 * time.Second
	poolBackoff    = time.Second
	poolBackoffMax = time.Minute
)

// keepPools looks after the pools until ctx ends, and then lets others lead.
func (p *Provider) keepPools(ctx context.Context) {
	defer p.resign(context.WithoutCancel(ctx))
	tick := time.NewTicker(poolInterval)
	defer tick.Stop()
	var watching sync.WaitGroup
	defer watching.Wait()
	watched := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.pools.wake:
		case <-tick.C:
		}
		p.pools.mu.Lock()
		kept, drain := slices.Clone(p.pools.kept), p.pools.drain
		p.pools.mu.Unlock()
		if len(kept) > 0 && !watched {
			watched = true
			watching.Go(func() { p.watchPools(ctx) })
		}
		if drain {
			if err := p.drain(ctx, kept); err != nil {
				p.complain(ctx, "pools that are no longer kept could not be deleted", "", err)
			} else {
				p.pools.mu.Lock()
				p.pools.drain = false
				p.pools.mu.Unlock()
			}
		}
		for _, one := range kept {
			if err := p.keepPool(ctx, one); err != nil {
				p.complain(ctx, "a pool could not be kept", one.template, err)
			}
		}
	}
}

func (p *Provider) complain(ctx context.Context, what, template string, err error) {
	if ctx.Err() == nil {
		p.log.WarnContext(ctx, what, "template", template, "error", err)
	}
}

// drain deletes the unclaimed pods of pools that are not kept any more.
func (p *Provider) drain(ctx context.Context, kept []*pool) error {
	selector := labels.Set{managedBy: managedByValue, labelKind: kindPool}.String()
	list, err := p.records().List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return kube.Wrap(ctx, "list pools", err)
	}
	for i := range list.Items {
		cm := &list.Items[i]
		key := cm.Labels[labelPool]
		if slices.ContainsFunc(kept, func(o *pool) bool { return o.key == key }) {
			continue
		}
		pods, err := p.listPool(ctx, key, useReady, useStarting)
		if err != nil {
			return err
		}
		for j := range pods {
			if err := p.drop(ctx, &pods[j]); err != nil {
				return err
			}
		}
		err = p.records().Delete(ctx, cm.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &cm.UID}})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return kube.Wrap(ctx, "delete a pool", err)
		}
	}
	return nil
}

// drop deletes a pod that nobody has claimed: the version makes sure.
func (p *Provider) drop(ctx context.Context, pod *corev1.Pod) error {
	err := p.pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &pod.UID, ResourceVersion: &pod.ResourceVersion},
	})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	if err == nil {
		return p.deleteSecret(ctx, pod)
	}
	return kube.Wrap(ctx, "delete a pool's pod", err)
}

// watchPools notes that unclaimed pods change, until ctx ends.
func (p *Provider) watchPools(ctx context.Context) {
	opts := metav1.ListOptions{
		LabelSelector: labels.Set{managedBy: managedByValue}.String() + "," + labelPool + "," + labelUse + " in (" + useReady + "," + useStarting + ")",
	}
	for {
		p.pools.version.Add(1)
		if w, err := p.pods(p.namespace).Watch(ctx, opts); err == nil {
			for range w.ResultChan() {
				p.pools.version.Add(1)
			}
			w.Stop()
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(poolInterval):
		}
	}
}

// keepPool brings one pool to its target, if this server leads it.
func (p *Provider) keepPool(ctx context.Context, one *pool) error {
	cm, leads, err := p.lead(ctx, one)
	if err != nil || !leads {
		one.settled = 0
		return err
	}
	version := p.pools.version.Load()
	if one.settled == version && time.Since(one.looked) < poolLook {
		return nil
	}
	settled, err := p.look(ctx, one, cm)
	one.settled, one.looked = 0, time.Now()
	if settled && err == nil {
		one.settled = version
	}
	return err
}

// look brings a pool to its target, and reports whether it is there.
func (p *Provider) look(ctx context.Context, one *pool, cm *corev1.ConfigMap) (settled bool, err error) {
	pods, err := p.listPool(ctx, one.key, useReady, useStarting)
	if err != nil {
		return false, err
	}
	settled = true
	var good []*corev1.Pod
	for i := range pods {
		pod := &pods[i]
		switch {
		case pod.DeletionTimestamp != nil:
			settled = false
		case !alive(pod) || pod.Labels[labelUse] == useStarting && !one.starts(pod.UID):
			settled = false
			// It failed, or the server that brought it up is gone.
			if err := p.drop(ctx, pod); err != nil {
				return false, err
			}
		default:
			good = append(good, pod)
		}
	}
	target := one.wanted()
	if over := len(good) - target; over != 0 {
		settled = false
	}
	if over := len(good) - target; over > 0 {
		// Those that are not ready yet go first, then the youngest.
		slices.SortFunc(good, func(a, b *corev1.Pod) int {
			return cmp.Or(cmp.Compare(a.Labels[labelUse], b.Labels[labelUse]), a.CreationTimestamp.Compare(b.CreationTimestamp.Time))
		})
		for _, pod := range good[len(good)-over:] {
			if err := p.drop(ctx, pod); err != nil {
				return false, err
			}
		}
		good = good[:len(good)-over]
	}
	if one.mustWait() {
		return settled, nil
	}
	for range target - len(good) {
		if err := p.addToPool(ctx, one, cm); err != nil {
			one.note(err)
			return false, err
		}
	}
	return settled, nil
}

// addToPool makes one pod and brings it up in the background.
func (p *Provider) addToPool(ctx context.Context, one *pool, cm *corev1.ConfigMap) error {
	name := "sgp-" + one.key[:8] + "-" + random()
	pl, err := p.plan(name, one.spec)
	if err != nil {
		return err
	}
	if err := p.prepareNetwork(ctx, pl, p.namespace); err != nil {
		return err
	}
	pod, err := p.makePod(ctx, pl, p.namespace, map[string]string{
		managedBy: managedByValue, labelPool: one.key, labelUse: useStarting,
	}, owner(cm))
	if err != nil {
		return err
	}
	one.began(pod.UID)
	p.work.Go(func() {
		defer p.wakePools()
		defer one.ended(pod.UID)
		bounded, cancel := context.WithTimeoutCause(ctx, pl.options.startTimeout(), errSlowStart)
		defer cancel()
		conn, err := p.bringUp(bounded, pl, pod)
		if err == nil {
			// The agent would hang up on who says nothing for long.
			_ = conn.Close()
			err = p.markReady(ctx, pod)
		}
		one.note(err)
		if err != nil && ctx.Err() == nil {
			p.complain(ctx, "a pool's pod did not start", one.template, err)
			if err := p.deletePod(ctx, pod); err != nil {
				p.complain(ctx, "a pool's pod could not be deleted", one.template, err)
			}
		}
	})
	return nil
}

func (p *Provider) markReady(ctx context.Context, pod *corev1.Pod) error {
	data, err := json.Marshal([]patch{{"test", labelPath(labelUse), useStarting}, {"replace", labelPath(labelUse), useReady}})
	if err != nil {
		return err
	}
	_, err = p.pods(pod.Namespace).Patch(ctx, pod.Name, types.JSONPatchType, data, metav1.PatchOptions{})
	return kube.Wrap(ctx, "mark a pool's pod as ready", err)
}

func (o *pool) starts(uid types.UID) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.starting[uid]
}

func (o *pool) began(uid types.UID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.starting[uid] = true
}

func (o *pool) ended(uid types.UID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.starting, uid)
}

// note makes the next try wait longer after each that failed.
func (o *pool) note(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err == nil {
		o.failed = 0
		return
	}
	o.failed++
	o.notUntil = time.Now().Add(min(poolBackoff<<min(o.failed-1, 10), poolBackoffMax))
}

func (o *pool) mustWait() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.failed > 0 && time.Now().Before(o.notUntil)
}
