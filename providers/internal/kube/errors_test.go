package kube

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sandgate/sandgate/providers"
)

func TestWrap(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	for _, c := range []struct {
		name         string
		err          error
		want, create error
	}{
		{"not found", apierrors.NewNotFound(pods, "x"), providers.ErrNotFound, providers.ErrStartFailed},
		{"quota", apierrors.NewForbidden(pods, "x", errors.New("exceeded quota: q, requested: pods=1")), providers.ErrExhausted, providers.ErrExhausted},
		{"forbidden", apierrors.NewForbidden(pods, "x", errors.New("no rule")), providers.ErrForbidden, providers.ErrForbidden},
		{"invalid", apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "x", nil), providers.ErrInvalid, providers.ErrInvalid},
		{"expired", apierrors.NewResourceExpired("old"), providers.ErrTokenExpired, providers.ErrTokenExpired},
		{"unauthorized", apierrors.NewUnauthorized("who"), providers.ErrUnavailable, providers.ErrUnavailable},
		{"too many", apierrors.NewTooManyRequests("later", 1), providers.ErrUnavailable, providers.ErrUnavailable},
		{"hung up", io.ErrUnexpectedEOF, providers.ErrUnavailable, providers.ErrUnavailable},
	} {
		if got := Wrap(t.Context(), "do", c.err); !errors.Is(got, c.want) || !strings.HasPrefix(got.Error(), "do: ") {
			t.Errorf("%s: %v", c.name, got)
		}
		if got := WrapCreate(t.Context(), "do", c.err); !errors.Is(got, c.create) {
			t.Errorf("%s at creation: %v", c.name, got)
		}
	}
	if Wrap(t.Context(), "do", nil) != nil || WrapCreate(t.Context(), "do", nil) != nil {
		t.Error("no error became one")
	}
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	if got := Wrap(ctx, "do", io.EOF); !errors.Is(got, why) {
		t.Errorf("after the context's end: %v", got)
	}
}

func TestTrouble(t *testing.T) {
	waiting := func(reason string) *corev1.Pod {
		return &corev1.Pod{Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{
			Name: "c", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: "why"}},
		}}}}
	}
	now := metav1.Now()
	unschedulable := &corev1.Pod{Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: "no room",
	}}}}
	for _, c := range []struct {
		name string
		pod  *corev1.Pod
		ago  string // what was seen a minute ago
		want error
	}{
		{"creating", waiting("ContainerCreating"), "", nil},
		{"never pulled", waiting("ErrImageNeverPull"), "", providers.ErrStartFailed},
		{"a first config error", waiting("CreateContainerConfigError"), "", nil},
		{"a lasting config error", waiting("CreateContainerConfigError"), "c/CreateContainerConfigError", providers.ErrStartFailed},
		{"no room yet", unschedulable, "", nil},
		{"no room for long", unschedulable, "unschedulable", providers.ErrExhausted},
		{"deleted", &corev1.Pod{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &now}}, "", providers.ErrStartFailed},
		{"ended", &corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodSucceeded}}, "", providers.ErrStartFailed},
	} {
		w := NewDiagnosis(Grace{Unschedulable: 5 * time.Second})
		if c.ago != "" {
			w.since[c.ago] = time.Now().Add(-time.Minute)
		}
		if got := w.Check(c.pod); !errors.Is(got, c.want) || (got == nil) != (c.want == nil) {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}
