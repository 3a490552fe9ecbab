package directory

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/record"
)

// Get returns one sandbox.
func (s *Store[R]) Get(ctx context.Context, name string) (providers.Info, error) {
	if ctx.Err() != nil {
		return providers.Info{}, fmt.Errorf("get %s: %w", name, context.Cause(ctx))
	}
	r, err := s.Read(s.Layout.Sandbox(name))
	// A server without a free descriptor can read none, and knows nothing of the sandbox.
	if errors.Is(err, providers.ErrNotFound) || errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
		return providers.Info{}, fmt.Errorf("%s: %w", name, err)
	}
	if err != nil {
		// An unreadable record must not keep List from returning the others.
		info := providers.Info{Name: name, State: providers.StateFailed, Message: record.ErrCorrupt.Error()}
		if _, failure := s.driver.Removal(name, ""); failure != "" {
			info.Message = failure
		}
		return info, nil
	}
	return s.driver.Observe(ctx, name, r)
}

// List reads the sandboxes in the order of their names. It asks the substrate once for
// all that run.
func (s *Store[R]) List(ctx context.Context, q providers.Query) (providers.Page, error) {
	names, err := s.Layout.Names()
	if err != nil {
		return providers.Page{}, err
	}
	stateless := q
	stateless.States = nil
	alive := s.driver.Alive(ctx)
	return s.Tokens.Page(ctx, q, names, func(name string) (providers.Info, error) {
		r, err := s.Read(s.Layout.Sandbox(name))
		if err != nil {
			return s.Get(ctx, name)
		}
		info := s.driver.Info(name, r)
		if !stateless.Matches(info) {
			return info, providers.ErrNotFound
		}
		if info.State != providers.StateUnknown {
			return info, nil
		}
		runs, err := alive(name, r)
		if err != nil {
			return info, err
		}
		if !runs {
			return s.driver.Observe(ctx, name, r)
		}
		info.State = providers.StateActive
		return info, nil
	})
}

// Dial connects to the agent inside.
func (s *Store[R]) Dial(ctx context.Context, name string) (net.Conn, error) {
	if ctx.Err() != nil {
		return nil, fmt.Errorf("dial %s: %w", name, context.Cause(ctx))
	}
	d := s.Layout.Sandbox(name)
	r, err := s.Read(d)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", name, err)
	}
	info := s.driver.Info(name, r)
	if r.base().Phase == Active && info.State != providers.StateFailed {
		conn, err := s.driver.Open(ctx, d, r)
		if err == nil {
			return conn, nil
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("dial %s: %w", name, errors.Join(context.Cause(ctx), err))
		}
		var observing error
		if info, observing = s.driver.Observe(ctx, name, r); observing != nil || info.State == providers.StateActive {
			return nil, fmt.Errorf("dial %s: %w: %w", name, providers.ErrUnavailable, err)
		}
	}
	return nil, providers.NotActive(info, "dial %s: it is %s", name, info.Status())
}
