//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"time"

	coordination "k8s.io/api/coordination/v1"
	core "k8s.io/api/core/v1"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sandgate/sandgate/bench/cluster"
)

// testbed is the cluster of KUBECONFIG, with a node that has no machine.
type testbed struct {
	options
	*cluster.Cluster
	dir   string
	node  string
	stop  context.CancelCauseFunc
	alive sync.WaitGroup
}

var errDone = errors.New("everything is measured")

func newTestbed(ctx context.Context, o options) (*testbed, error) {
	connected, err := cluster.Connect("scale-")
	if err != nil {
		return nil, fmt.Errorf("%w: run make scale", err)
	}
	c := &testbed{options: o, Cluster: connected}
	if c.dir, err = os.MkdirTemp("", "sandgate-scale-"); err != nil {
		return nil, err
	}
	if err := c.makeNode(ctx); err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

// heartbeatInterval is how often the node's lease is renewed, as a kubelet does.
const heartbeatInterval = 10 * time.Second

// makeNode creates a node that accepts only pods that name it, and renews its lease.
func (c *testbed) makeNode(ctx context.Context) error {
	condition := core.NodeCondition{
		Type: core.NodeReady, Status: core.ConditionTrue, Reason: "Scale", Message: "this node does not exist",
		LastHeartbeatTime: meta.Now(), LastTransitionTime: meta.Now(),
	}
	node, err := c.Client.CoreV1().Nodes().Create(ctx, &core.Node{
		ObjectMeta: meta.ObjectMeta{GenerateName: "scale-"},
		Spec:       core.NodeSpec{Taints: []core.Taint{{Key: "sandgate.dev/scale", Effect: core.TaintEffectNoSchedule}}},
	}, meta.CreateOptions{})
	if err != nil {
		return err
	}
	c.node = node.Name
	status, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []core.NodeCondition{condition}}})
	if err != nil {
		return err
	}
	if _, err = c.Client.CoreV1().Nodes().Patch(ctx, c.node, types.StrategicMergePatchType, status, meta.PatchOptions{}, "status"); err != nil {
		return err
	}
	leases := c.Client.CoordinationV1().Leases(core.NamespaceNodeLease)
	now := meta.NowMicro()
	seconds := int32(40)
	lease, err := leases.Create(ctx, &coordination.Lease{
		ObjectMeta: meta.ObjectMeta{Name: c.node, OwnerReferences: []meta.OwnerReference{{
			APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID,
		}}},
		Spec: coordination.LeaseSpec{HolderIdentity: &c.node, LeaseDurationSeconds: &seconds, RenewTime: &now},
	}, meta.CreateOptions{})
	if err != nil {
		return err
	}
	life, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	c.stop = stop
	c.alive.Go(func() {
		tick := time.NewTicker(heartbeatInterval)
		defer tick.Stop()
		for {
			select {
			case <-life.Done():
				return
			case <-tick.C:
			}
			now := meta.NowMicro()
			lease.Spec.RenewTime = &now
			if next, err := leases.Update(life, lease, meta.UpdateOptions{}); err == nil {
				lease = next
			}
		}
	})
	return nil
}

// clear deletes all pods of a namespace with grace period 0, since no kubelet runs
// them. The API server would cancel one request for all of them after a minute.
func (c *testbed) clear(ctx context.Context, namespace string) error {
	names := make(chan string)
	var work sync.WaitGroup
	var mu sync.Mutex
	var failed error
	for range c.workers {
		work.Go(func() {
			for name := range names {
				err := c.Client.CoreV1().Pods(namespace).Delete(ctx, name, meta.DeleteOptions{GracePeriodSeconds: new(int64)})
				if err != nil && !kerrors.IsNotFound(err) {
					mu.Lock()
					failed = errors.Join(failed, err)
					mu.Unlock()
				}
			}
		})
	}
	opts := meta.ListOptions{Limit: 500}
	for {
		list, err := c.Client.CoreV1().Pods(namespace).List(ctx, opts)
		if err != nil {
			failed = errors.Join(failed, err)
			break
		}
		for i := range list.Items {
			names <- list.Items[i].Name
		}
		if opts.Continue = list.Continue; opts.Continue == "" {
			break
		}
	}
	close(names)
	work.Wait()
	return failed
}

func (c *testbed) close() {
	ctx, cancel := context.WithTimeoutCause(context.Background(), 20*time.Minute, errors.New("deleting took over 20 minutes"))
	defer cancel()
	for _, name := range c.Namespaces {
		err := errors.Join(c.clear(ctx, name), c.Client.CoreV1().Namespaces().Delete(ctx, name, meta.DeleteOptions{}))
		err = errors.Join(err, cluster.Wait(ctx, "the end of namespace "+name, func() (bool, error) {
			_, err := c.Client.CoreV1().Namespaces().Get(ctx, name, meta.GetOptions{})
			return kerrors.IsNotFound(err), nil
		}))
		if err != nil {
			fmt.Fprintf(os.Stderr, "scale: namespace %s is left over: %v\n", name, err)
		}
	}
	if c.stop != nil {
		c.stop(errDone)
	}
	c.alive.Wait()
	if err := c.Client.CoreV1().Nodes().Delete(ctx, c.node, meta.DeleteOptions{}); err != nil && c.node != "" {
		fmt.Fprintf(os.Stderr, "scale: node %s is left over: %v\n", c.node, err)
	}
	_ = os.RemoveAll(c.dir)
}

// control stops or starts agent-sandbox's controller.
func (c *testbed) control(ctx context.Context, verb string) error {
	out, err := exec.CommandContext(ctx, c.cluster, verb, "agent-sandbox").CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s agent-sandbox's controller: %w: %s", verb, err, out)
	}
	return nil
}
