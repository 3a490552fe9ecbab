package cluster

import (
	"context"

	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// The kinds of agent-sandbox, in the only version that its stable releases serve.
var (
	Templates = extension("sandboxtemplates")
	Pools     = extension("sandboxwarmpools")
	Claims    = extension("sandboxclaims")
	Sandboxes = schema.GroupVersionResource{Group: "agents.x-k8s.io", Version: "v1beta1", Resource: "sandboxes"}
)

func extension(resource string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "extensions.agents.x-k8s.io", Version: "v1beta1", Resource: resource}
}

// Make makes an object of which no more than this is to be said.
func (c *Cluster) Make(ctx context.Context, resource schema.GroupVersionResource, kind, namespace, name string, spec map[string]any) error {
	_, err := c.Dynamic.Resource(resource).Namespace(namespace).Create(ctx, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": resource.GroupVersion().String(), "kind": kind,
		"metadata": map[string]any{"name": name}, "spec": spec,
	}}, meta.CreateOptions{})
	return err
}
