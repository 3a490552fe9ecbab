package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/sandgate/sandgate/agent/protocol"
)

func TestReplay(t *testing.T) {
	info := &grpc.UnaryServerInfo{FullMethod: "/s/Move"}
	with := func(ctx context.Context, id string) context.Context {
		return metadata.NewIncomingContext(ctx, metadata.Pairs(protocol.CallIDKey, id))
	}
	count := func(n *atomic.Int32, err error) grpc.UnaryHandler {
		return func(context.Context, any) (any, error) { return fmt.Sprint("reply ", n.Add(1)), err }
	}
	t.Run("once", func(t *testing.T) {
		r := newReplay()
		for _, failure := range []error{nil, errors.New("no such file")} {
			var n atomic.Int32
			var wg sync.WaitGroup
			for range 20 {
				wg.Go(func() {
					got, err := r.intercept(with(t.Context(), fmt.Sprint("id ", failure)), nil, info, count(&n, failure))
					if got != "reply 1" || !errors.Is(err, failure) {
						t.Errorf("%v, %v", got, err)
					}
				})
			}
			wg.Wait()
		}
	})
	t.Run("without an id", func(t *testing.T) {
		r := newReplay()
		var n atomic.Int32
		for range 3 {
			_, _ = r.intercept(t.Context(), nil, info, count(&n, nil))
		}
		if n.Load() != 3 {
			t.Errorf("carried out %d times", n.Load())
		}
	})
	t.Run("another method", func(t *testing.T) {
		r := newReplay()
		var n atomic.Int32
		_, _ = r.intercept(with(t.Context(), "a"), nil, info, count(&n, nil))
		_, _ = r.intercept(with(t.Context(), "a"), nil, &grpc.UnaryServerInfo{FullMethod: "/s/Edit"}, count(&n, nil))
		if n.Load() != 2 {
			t.Errorf("carried out %d times", n.Load())
		}
	})
	// A call that its broken connection cut off before it did anything is
	// carried out when it comes again, also while the first is still ending.
	t.Run("cut off", func(t *testing.T) {
		r := newReplay()
		ctx, cancel := context.WithCancel(t.Context())
		began, end := make(chan struct{}), make(chan struct{})
		first := make(chan error, 1)
		go func() {
			_, err := r.intercept(with(ctx, "a"), nil, info, func(ctx context.Context, _ any) (any, error) {
				close(began)
				<-end
				return nil, context.Cause(ctx)
			})
			first <- err
		}()
		<-began
		again := make(chan any, 1)
		go func() {
			got, _ := r.intercept(with(t.Context(), "a"), nil, info, func(context.Context, any) (any, error) { return "second", nil })
			again <- got
		}()
		cancel()
		close(end)
		if err := <-first; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if got := <-again; got != "second" {
			t.Errorf("got %v", got)
		}
	})
	t.Run("bound", func(t *testing.T) {
		r := newReplay()
		var n atomic.Int32
		for i := range 3 * replayCalls {
			_, _ = r.intercept(with(t.Context(), fmt.Sprint(i)), nil, info, count(&n, nil))
		}
		if len(r.byID) > replayCalls || len(r.order) > replayCalls {
			t.Errorf("%d answers are kept", len(r.byID))
		}
	})
}
