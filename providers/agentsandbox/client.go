package agentsandbox

import (
	"context"
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
)

// kind is a client for one kind of objects in one namespace.
type kind[T any] struct {
	resource dynamic.ResourceInterface
	name     string // of the kind
	version  schema.GroupVersion
}

func newKind[T any](c dynamic.Interface, r schema.GroupVersionResource, namespace, name string) kind[T] {
	return kind[T]{resource: c.Resource(r).Namespace(namespace), name: name, version: r.GroupVersion()}
}

func typed[T any](u *unstructured.Unstructured) (*T, error) {
	out := new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, out); err != nil {
		return nil, fmt.Errorf("%s %s: %w", u.GetKind(), u.GetName(), err)
	}
	return out, nil
}

func (k kind[T]) get(ctx context.Context, name string) (*T, error) {
	u, err := k.resource.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return typed[T](u)
}

func (k kind[T]) list(ctx context.Context, opts metav1.ListOptions) (items []*T, next string, err error) {
	l, err := k.resource.List(ctx, opts)
	if err != nil {
		return nil, "", err
	}
	for i := range l.Items {
		t, err := typed[T](&l.Items[i])
		if err != nil {
			return nil, "", err
		}
		items = append(items, t)
	}
	return items, l.GetContinue(), nil
}

func (k kind[T]) create(ctx context.Context, t *T) (*T, error) {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(t)
	if err != nil {
		return nil, err
	}
	delete(fields, "status")
	u := &unstructured.Unstructured{Object: fields}
	u.SetGroupVersionKind(k.version.WithKind(k.name))
	u, err = k.resource.Create(ctx, u, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	return typed[T](u)
}

// patch merges fields into an object. With a resourceVersion in its metadata it
// fails when the object has changed since.
func (k kind[T]) patch(ctx context.Context, name string, fields map[string]any) (*T, error) {
	data, err := json.Marshal(fields)
	if err != nil {
		return nil, err
	}
	u, err := k.resource.Patch(ctx, name, types.MergePatchType, data, metav1.PatchOptions{})
	if err != nil {
		return nil, err
	}
	return typed[T](u)
}

func (k kind[T]) delete(ctx context.Context, name string, opts metav1.DeleteOptions) error {
	return k.resource.Delete(ctx, name, opts)
}

func (k kind[T]) getRaw(ctx context.Context, name string, opts metav1.GetOptions) (*unstructured.Unstructured, error) {
	return k.resource.Get(ctx, name, opts)
}

func (k kind[T]) watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	return k.resource.Watch(ctx, opts)
}
