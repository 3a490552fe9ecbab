package kubernetes

import (
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/strictjson"
)

// finish merges the template's overrides into the pod and holds the result to
// the floor, which no template can lower.
func (p *plan) finish(pod *corev1.Pod) error {
	if err := merge(pod, p.options.PodOverrides); err != nil {
		return fmt.Errorf("pod_overrides: %w: %w", err, providers.ErrInvalid)
	}
	if err := p.checkFloor(pod); err != nil {
		return fmt.Errorf("template %q: %w: %w", p.spec.Template, err, providers.ErrForbidden)
	}
	return nil
}

func merge(pod *corev1.Pod, overrides json.RawMessage) error {
	if len(overrides) == 0 || string(overrides) == "null" {
		return nil
	}
	if err := strictPatch(overrides); err != nil {
		return err
	}
	base, err := json.Marshal(pod.Spec)
	if err != nil {
		return err
	}
	merged, err := strategicpatch.StrategicMergePatch(base, overrides, corev1.PodSpec{})
	if err != nil {
		return err
	}
	var spec corev1.PodSpec
	if err := json.Unmarshal(merged, &spec); err != nil {
		return err
	}
	pod.Spec = spec
	return nil
}

// strictPatch refuses fields that no pod has. The patch's own directives, which
// begin with a dollar, are left aside.
func strictPatch(overrides json.RawMessage) error {
	var tree any
	if err := json.Unmarshal(overrides, &tree); err != nil {
		return err
	}
	plain, err := json.Marshal(withoutDirectives(tree))
	if err != nil {
		return err
	}
	return strictjson.Decode(plain, &corev1.PodSpec{})
}

func withoutDirectives(tree any) any {
	switch t := tree.(type) {
	case map[string]any:
		out := make(map[string]any, len(t))
		for k, v := range t {
			if len(k) == 0 || k[0] != '$' {
				out[k] = withoutDirectives(v)
			}
		}
		return out
	case []any:
		out := make([]any, len(t))
		for i, v := range t {
			out[i] = withoutDirectives(v)
		}
		return out
	default:
		return tree
	}
}
