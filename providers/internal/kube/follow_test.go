package kube

import (
	"context"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// What is known is not asked for again; what a watch that ends has missed is.
func TestFollowRequestsNothingThatIsKnown(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	version := func(v string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "pod", ResourceVersion: v}}
	}
	var asked []string
	object := Object[*corev1.Pod]{
		Name: "pod",
		Get: func(context.Context, string, metav1.GetOptions) (*corev1.Pod, error) {
			asked = append(asked, "get")
			return version("7"), nil
		},
		Watch: func(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
			asked = append(asked, "watch "+o.ResourceVersion)
			w := watch.NewFakeWithChanSize(2, false)
			w.Modify(version("5"))
			if o.ResourceVersion == "3" {
				w.Stop()
			}
			return w, nil
		},
	}
	for _, c := range []struct {
		from, until string
		asked       []string
	}{
		{"4", "5", []string{"watch 4"}},
		{"3", "7", []string{"watch 3", "get"}},
	} {
		asked = nil
		err := FollowFrom(ctx, object, c.from, func(pod *corev1.Pod, exists bool) (bool, error) {
			return exists && pod.ResourceVersion == c.until, nil
		})
		if err != nil || !slices.Equal(asked, c.asked) {
			t.Errorf("from %s: asked %q, want %q: %v", c.from, asked, c.asked, err)
		}
	}
}
