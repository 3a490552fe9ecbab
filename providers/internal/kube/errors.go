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

// Wrap maps an error of the API server to a sentinel of package providers: a
// missing object to ErrNotFound, a request without an answer to ErrUnavailable.
// If ctx has ended, Wrap wraps its cause instead. It returns nil for nil.
func Wrap(ctx context.Context, what string, err error) error {
	if err == nil {
		return nil
	}
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("%s: %w: %w", what, err, providers.ErrNotFound)
	}
	return wrap(ctx, what, err)
}

// WrapCreate is Wrap for the creation of objects. There "not found" is about
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

// expired reports whether ctx has ended. A connection with ctx's deadline may time
// out a moment before ctx itself.
func expired(ctx context.Context) bool {
	if deadline, ok := ctx.Deadline(); ok && !time.Now().Before(deadline) {
		<-ctx.Done()
	}
	return ctx.Err() != nil
}

func wrap(ctx context.Context, what string, err error) error {
	if expired(ctx) {
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
		// The API server was not reached, or closed the connection.
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
		// Unauthorized, too many requests, timeouts, internal errors: faults of the
		// cluster, not of the request.
		return providers.ErrUnavailable
	}
}

// overQuota distinguishes the refusal of a ResourceQuota from one of RBAC or an
// admission policy. All have the same reason and differ only in their message.
func overQuota(err error) bool {
	return strings.Contains(err.Error(), "exceeded quota:")
}
