//go:build linux

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"sync"

	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sandgate/sandgate/bench/cluster"
)

var (
	pods    = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	records = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
)

// mold holds the objects of a real sandbox, to be copied.
type mold struct {
	c         *testbed
	namespace string
	// record is the ConfigMap or the claim; box is the Sandbox, if there is one.
	record, box, pod *unstructured.Unstructured
	made             int
}

// newMold reads the objects of the only sandbox in a namespace.
func (c *testbed) newMold(ctx context.Context, provider, namespace string) (*mold, error) {
	m := &mold{c: c, namespace: namespace}
	one := func(resource schema.GroupVersionResource, selector string) (*unstructured.Unstructured, error) {
		list, err := c.Dynamic.Resource(resource).Namespace(namespace).List(ctx, meta.ListOptions{LabelSelector: selector})
		if err == nil && len(list.Items) != 1 {
			err = fmt.Errorf("%d %s, want one", len(list.Items), resource.Resource)
		}
		if err != nil {
			return nil, err
		}
		return &list.Items[0], nil
	}
	var err error
	if m.pod, err = one(pods, ""); err != nil {
		return nil, err
	}
	if provider == "kubernetes" {
		m.record, err = one(records, "sandgate.dev/kind=sandbox")
		return m, err
	}
	if m.record, err = one(cluster.Claims, ""); err != nil {
		return nil, err
	}
	m.box, err = one(cluster.Sandboxes, "")
	return m, err
}

// fill creates copies until n exist.
func (m *mold) fill(ctx context.Context, n int) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(errDone)
	next := make(chan int)
	var work sync.WaitGroup
	for range m.c.workers {
		work.Go(func() {
			for i := range next {
				if err := m.copy(ctx, fmt.Sprintf("scale-%05d", i)); err != nil {
					cancel(fmt.Errorf("copy %d: %w", i, err))
				}
			}
		})
	}
	for ; m.made < n && ctx.Err() == nil; m.made++ {
		next <- m.made
	}
	close(next)
	work.Wait()
	return context.Cause(ctx)
}

// copy creates one more sandbox.
func (m *mold) copy(ctx context.Context, id string) error {
	name := "sg-" + id + "-copy"
	if m.box != nil {
		return m.copyClaim(ctx, id, name)
	}
	pod := m.copyPod(name)
	pod.SetLabels(with(pod.GetLabels(), "sandgate.dev/name", name))
	pod, err := m.put(ctx, pods, pod)
	if err != nil {
		return err
	}
	record := bare(m.record, name)
	text, _, _ := unstructured.NestedString(record.Object, "data", "record")
	text, err = edit(text, func(r map[string]any) {
		r["pod"], r["uid"] = name, string(pod.GetUID())
		r["spec"].(map[string]any)["id"] = id
	})
	if err != nil {
		return err
	}
	if err := unstructured.SetNestedField(record.Object, text, "data", "record"); err != nil {
		return err
	}
	record.SetAnnotations(with(record.GetAnnotations(), "sandgate.dev/id", id))
	_, err = m.put(ctx, records, record)
	return err
}

func (m *mold) copyClaim(ctx context.Context, id, name string) error {
	claim := bare(m.record, name)
	text, err := edit(claim.GetAnnotations()["sandgate.dev/record"], func(r map[string]any) { r["spec"].(map[string]any)["id"] = id })
	if err != nil {
		return err
	}
	claim.SetAnnotations(with(claim.GetAnnotations(), "sandgate.dev/record", text))
	if err := unstructured.SetNestedField(claim.Object, name, "status", "sandbox", "name"); err != nil {
		return err
	}
	claim, err = m.put(ctx, cluster.Claims, claim)
	if err != nil {
		return err
	}
	h := fnv.New32a()
	h.Write([]byte(name))
	hash := fmt.Sprintf("%08x", h.Sum32())
	box := bare(m.box, name)
	box.SetOwnerReferences(owned(m.box.GetOwnerReferences(), claim))
	if box, err = m.put(ctx, cluster.Sandboxes, box); err != nil {
		return err
	}
	pod := m.copyPod(name)
	pod.SetOwnerReferences(owned(m.pod.GetOwnerReferences(), box))
	pod.SetLabels(with(pod.GetLabels(), "agents.x-k8s.io/sandbox-name-hash", hash))
	_, err = m.put(ctx, pods, pod)
	return err
}

// copyPod creates a pod on the node without a machine.
func (m *mold) copyPod(name string) *unstructured.Unstructured {
	pod := bare(m.pod, name)
	_ = unstructured.SetNestedField(pod.Object, m.c.node, "spec", "nodeName")
	return pod
}

// put creates an object and sets its status, as its controller would.
func (m *mold) put(ctx context.Context, resource schema.GroupVersionResource, object *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	client := m.c.Dynamic.Resource(resource).Namespace(m.namespace)
	made, err := client.Create(ctx, object, meta.CreateOptions{})
	if err != nil || object.Object["status"] == nil {
		return made, err
	}
	made.Object["status"] = object.Object["status"]
	return client.UpdateStatus(ctx, made, meta.UpdateOptions{})
}

// bare returns a copy without the fields that the cluster set.
func bare(from *unstructured.Unstructured, name string) *unstructured.Unstructured {
	out := from.DeepCopy()
	out.Object["metadata"] = map[string]any{}
	out.SetName(name)
	out.SetLabels(with(from.GetLabels(), "label.sandgate.dev/probe", "no"))
	out.SetAnnotations(from.GetAnnotations())
	return out
}

// owned returns references to another owner.
func owned(references []meta.OwnerReference, by *unstructured.Unstructured) []meta.OwnerReference {
	for i := range references {
		references[i].Name, references[i].UID = by.GetName(), by.GetUID()
	}
	return references
}

func with(in map[string]string, key, value string) map[string]string {
	out := map[string]string{}
	for k, v := range in {
		out[k] = v
	}
	out[key] = value
	return out
}

// edit changes a JSON object.
func edit(text string, change func(map[string]any)) (string, error) {
	var fields map[string]any
	if err := json.Unmarshal([]byte(text), &fields); err != nil {
		return "", err
	}
	change(fields)
	data, err := json.Marshal(fields)
	return string(data), err
}
