package kube

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
)

// Object is the part of a client that Follow needs, for one kind of objects.
type Object[T metav1.Object] struct {
	Name  string
	Get   func(ctx context.Context, name string, opts metav1.GetOptions) (T, error)
	Watch func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error)
}

const (
	followRetry = 500 * time.Millisecond
	// followAgain bounds how long a silent watch is trusted.
	followAgain = 5 * time.Second
)

// Follow calls see with an object, at once and after each change, until see is
// done or returns an error. While the object is missing, exists is false. Follow
// also calls see every few seconds without any change, so that see can measure
// time. It waits for an API server that does not answer. When ctx ends, the error
// wraps context.Cause.
func Follow[T metav1.Object](ctx context.Context, o Object[T], see func(object T, exists bool) (done bool, err error)) error {
	for {
		now, err := o.Get(ctx, o.Name, metav1.GetOptions{})
		switch {
		case err == nil:
			if done, err := see(now, true); done || err != nil {
				return err
			}
		case apierrors.IsNotFound(err):
			var none T
			if done, err := see(none, false); done || err != nil {
				return err
			}
		case apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err):
			return Wrap(ctx, "follow "+o.Name, err)
		}
		if err == nil {
			done, err := followOn(ctx, o, now.GetResourceVersion(), see)
			if done || err != nil {
				return err
			}
			continue
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("follow %s: %w", o.Name, context.Cause(ctx))
		case <-time.After(followRetry):
		}
	}
}

// FollowFrom is Follow from a version that the caller knows already: it calls see
// with later changes only.
func FollowFrom[T metav1.Object](ctx context.Context, o Object[T], version string, see func(object T, exists bool) (done bool, err error)) error {
	done, err := followOn(ctx, o, version, see)
	if done || err != nil {
		return err
	}
	return Follow(ctx, o, see)
}

// followOn returns without an error when the object must be read again.
func followOn[T metav1.Object](ctx context.Context, o Object[T], version string, see func(T, bool) (bool, error)) (done bool, err error) {
	again := time.NewTimer(followAgain)
	defer again.Stop()
	w, err := o.Watch(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, o.Name).String(), ResourceVersion: version,
	})
	if err != nil {
		if apierrors.IsForbidden(err) {
			return false, Wrap(ctx, "watch "+o.Name, err)
		}
		select {
		case <-ctx.Done():
			return false, fmt.Errorf("follow %s: %w", o.Name, context.Cause(ctx))
		case <-time.After(followRetry):
			return false, nil
		}
	}
	defer w.Stop()
	for {
		select {
		case <-ctx.Done():
			return false, fmt.Errorf("follow %s: %w", o.Name, context.Cause(ctx))
		case <-again.C:
			return false, nil
		case e, open := <-w.ResultChan():
			if !open {
				return false, nil
			}
			switch e.Type {
			case watch.Added, watch.Modified:
				object, ok := e.Object.(T)
				if !ok {
					return false, nil
				}
				if done, err := see(object, true); done || err != nil {
					return done, err
				}
			case watch.Deleted:
				var none T
				return see(none, false)
			default:
				return false, nil
			}
		}
	}
}
