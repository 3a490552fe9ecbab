package kube

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/sandgate/sandgate/providers"
)

// Wrap says what an error of the API server means, as one of providers'
// sentinels: what is not there is ErrNotFound, what could not be answered is
// ErrUnavailable. When ctx has ended, its cause is wrapped in place of the
// error. It returns nil for nil.
func Wrap(ctx context.Context, what string, err error) error {
	if err == nil {
		return nil
	}
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("%s: %w: %w", what, err, providers.ErrNotFound)
	}
	return wrap(ctx, what, err)
}

// WrapCreate is Wrap for the creation of objects, where "not found" is said of
// something that the object needs, such as its namespace: ErrStartFailed.
func WrapCreate(ctx context.Context, what string, err error) error {
	if err == nil {
		return nil
	}
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("%s: %w: %w", what, err, providers.ErrStartFailed)
	}
	return wrap(ctx, what, err)
}

// over reports whether ctx has ended. A connection may see its deadline, which is
// ctx's, a moment before ctx itself does.
func over(ctx context.Context) bool {
	if deadline, ok := ctx.Deadline(); ok && !time.Now().Before(deadline) {
		<-ctx.Done()
	}
	return ctx.Err() != nil
}

func wrap(ctx context.Context, what string, err error) error {
	if over(ctx) {
		return fmt.Errorf("%s: %w", what, context.Cause(ctx))
	}
	if sentinel := meaning(err); sentinel != nil {
		return fmt.Errorf("%s: %w: %w", what, err, sentinel)
	}
	return fmt.Errorf("%s: %w", what, err)
}

func meaning(err error) error {
	var status apierrors.APIStatus
	switch {
	case !errors.As(err, &status):
		// The API server was not reached, or hung up.
		return providers.ErrUnavailable
	case apierrors.IsForbidden(err) && overQuota(err):
		return providers.ErrExhausted
	case apierrors.IsForbidden(err):
		return providers.ErrForbidden
	case apierrors.IsInvalid(err), apierrors.IsRequestEntityTooLargeError(err):
		return providers.ErrInvalid
	case apierrors.IsResourceExpired(err), apierrors.IsGone(err):
		return providers.ErrTokenExpired
	case apierrors.IsBadRequest(err), apierrors.IsAlreadyExists(err), apierrors.IsConflict(err), apierrors.IsMethodNotSupported(err):
		return nil
	default:
		// Unauthorized, too many requests, timeouts, internal errors: of the
		// cluster, not of the request.
		return providers.ErrUnavailable
	}
}

// overQuota tells a ResourceQuota's refusal from one of RBAC or an admission
// policy. The API server gives all the same reason and tells them apart only in
// words.
func overQuota(err error) bool {
	return strings.Contains(err.Error(), "exceeded quota:")
}
