package kubernetes

import (
	"errors"
	"slices"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	k8stesting "k8s.io/client-go/testing"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/pool"
)

// Of the pods of a pool, those that run and are not claimed are members.
func TestRunningUnclaimedPodsAreMembers(t *testing.T) {
	p, client := fakeProvider(t)
	spec := providers.Spec{Template: "t", Network: providers.NetworkNone}
	key, err := p.poolKey(spec)
	if err != nil {
		t.Fatal(err)
	}
	add := func(name, key, use string, change func(*corev1.Pod)) {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "sgp-k-" + name, Namespace: "ns", Labels: map[string]string{
			managedBy: managedByValue, labelPool: key, labelUse: use,
		}}}
		change(pod)
		if _, err := client.CoreV1().Pods("ns").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	as := func(*corev1.Pod) {}
	add("ready", key, useReady, as)
	add("starting", key, useStarting, as)
	add("claimed", key, useClaimed, as)
	add("other", "another", useReady, as)
	add("ended", key, useReady, func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodFailed })
	add("deleted", key, useReady, func(pod *corev1.Pod) { pod.DeletionTimestamp = new(metav1.Now()) })
	states := func(spec *providers.Spec) map[string]pool.State {
		out := map[string]pool.State{}
		for m, err := range (poolDriver{p}).Unclaimed(t.Context(), spec, true) {
			if err != nil {
				t.Fatal(err)
			}
			out[m.Name] = m.State
		}
		return out
	}
	got := states(&spec)
	if len(got) != 3 || got["ready"] != pool.Ready || got["starting"] != pool.Starting || got["ended"] != pool.Broken {
		t.Errorf("members: %v", got)
	}
	if all := states(nil); len(all) != 4 {
		t.Errorf("members of all pools: %v", all)
	}
}

// The record of a pool owns its lease. It is deleted when the pool is not kept and
// none of its pods is a sandbox.
func TestPoolRecordOwnsItsLease(t *testing.T) {
	p, client := fakeProvider(t)
	kept := providers.Pool{Template: "t", Target: 1, Spec: providers.Spec{Template: "t", Network: providers.NetworkNone}}
	key, err := p.poolKey(kept.Spec)
	if err != nil {
		t.Fatal(err)
	}
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: poolName(key), Namespace: "ns"}}
	if _, err := client.CoordinationV1().Leases("ns").Create(t.Context(), lease, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	// Another server deletes the record, and this one makes it again.
	var uid types.UID
	client.PrependReactor("create", "configmaps", func(a k8stesting.Action) (bool, runtime.Object, error) {
		a.(k8stesting.CreateAction).GetObject().(*corev1.ConfigMap).UID = uid
		return false, nil, nil
	})
	for _, uid = range []types.UID{"first", "second"} {
		if err := client.CoreV1().ConfigMaps("ns").Delete(t.Context(), poolName(key), metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
		cm, err := p.poolRecord(t.Context(), key, "t")
		if err != nil || cm.UID != uid {
			t.Fatalf("the record: %+v, %v", cm, err)
		}
		now, err := client.CoordinationV1().Leases("ns").Get(t.Context(), poolName(key), metav1.GetOptions{})
		if err != nil || !slices.Equal(now.OwnerReferences, owner(cm)) {
			t.Errorf("the lease: %+v, %v", now, err)
		}
		if err := p.ownLease(t.Context(), cm); err != nil {
			t.Error(err)
		}
	}
	if err := p.deletePoolRecords(t.Context(), []providers.Pool{kept}); err != nil {
		t.Error(err)
	}
	if _, err := client.CoreV1().ConfigMaps("ns").Get(t.Context(), poolName(key), metav1.GetOptions{}); err != nil {
		t.Errorf("the record of a kept pool: %v", err)
	}
	claimed := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "claimed", Namespace: "ns", Labels: map[string]string{
		managedBy: managedByValue, labelPool: key, labelUse: useClaimed,
	}}}
	if _, err := client.CoreV1().Pods("ns").Create(t.Context(), claimed, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := p.deletePoolRecords(t.Context(), nil); err != nil {
		t.Error(err)
	}
	if _, err := client.CoreV1().ConfigMaps("ns").Get(t.Context(), poolName(key), metav1.GetOptions{}); err != nil {
		t.Errorf("the record of a pool with a claimed pod: %v", err)
	}
	if err := client.CoreV1().Pods("ns").Delete(t.Context(), claimed.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := p.deletePoolRecords(t.Context(), nil); err != nil {
		t.Error(err)
	}
	if _, err := client.CoreV1().ConfigMaps("ns").Get(t.Context(), poolName(key), metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the record of a pool that is not kept: %v", err)
	}
}

// KeepPools deletes the records of pools that are not kept, later if the cluster
// does not let it at once.
func TestPoolRecordIsDeletedLater(t *testing.T) {
	p, client := fakeProvider(t)
	defer p.pools.Close()
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: poolName("key"), Namespace: "ns", Labels: map[string]string{
		managedBy: managedByValue, labelKind: kindPool, labelPool: "key",
	}}}
	if _, err := client.CoreV1().ConfigMaps("ns").Create(t.Context(), cm, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	deletions := make(chan struct{}, 10)
	client.PrependReactor("delete", "configmaps", func(k8stesting.Action) (bool, runtime.Object, error) {
		deletions <- struct{}{}
		if len(deletions) == 1 {
			return true, nil, errors.New("not now")
		}
		return false, nil, nil
	})
	if err := p.KeepPools(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	for range 100 {
		time.Sleep(100 * time.Millisecond)
		if _, err := client.CoreV1().ConfigMaps("ns").Get(t.Context(), poolName("key"), metav1.GetOptions{}); apierrors.IsNotFound(err) {
			return
		}
	}
	t.Errorf("the record is there after %d deletions", len(deletions))
}
