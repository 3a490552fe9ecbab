package kube

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	coordination "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"

	"github.com/sandgate/sandgate/providers"
)

// leases is an API server with one lease.
type leases struct {
	mu      sync.Mutex
	lease   *coordination.Lease
	version int
}

// line is the connection of one process, which may be cut.
type line struct {
	coordinationv1.LeaseInterface
	to *leases

	mu     sync.Mutex
	cut    chan struct{} // nothing gets through until it is closed
	slow   time.Duration // what got through is answered so much later
	refuse error
}

func (l *line) Leases(string) coordinationv1.LeaseInterface { return l }

func (l *line) set(change func(*line)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change(l)
}

func (l *line) ask(ctx context.Context, do func() (*coordination.Lease, error)) (*coordination.Lease, error) {
	l.mu.Lock()
	cut, slow, refuse := l.cut, l.slow, l.refuse
	l.mu.Unlock()
	if refuse != nil {
		return nil, refuse
	}
	if cut != nil {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-cut:
		}
	}
	l.to.mu.Lock()
	lease, err := do()
	l.to.mu.Unlock()
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(slow):
		return lease, err
	}
}

var resource = schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}

func (l *line) Get(ctx context.Context, name string, _ metav1.GetOptions) (*coordination.Lease, error) {
	return l.ask(ctx, func() (*coordination.Lease, error) {
		if l.to.lease == nil {
			return nil, apierrors.NewNotFound(resource, name)
		}
		return l.to.lease.DeepCopy(), nil
	})
}

func (l *line) Create(ctx context.Context, lease *coordination.Lease, _ metav1.CreateOptions) (*coordination.Lease, error) {
	return l.ask(ctx, func() (*coordination.Lease, error) {
		if l.to.lease != nil {
			return nil, apierrors.NewAlreadyExists(resource, lease.Name)
		}
		return l.to.put(lease), nil
	})
}

func (l *line) Update(ctx context.Context, lease *coordination.Lease, _ metav1.UpdateOptions) (*coordination.Lease, error) {
	return l.ask(ctx, func() (*coordination.Lease, error) {
		if l.to.lease == nil || l.to.lease.ResourceVersion != lease.ResourceVersion {
			return nil, apierrors.NewConflict(resource, lease.Name, errors.New("it has changed"))
		}
		return l.to.put(lease), nil
	})
}

func (s *leases) put(lease *coordination.Lease) *coordination.Lease {
	s.version++
	s.lease = lease.DeepCopy()
	s.lease.ResourceVersion = strconv.Itoa(s.version)
	return s.lease.DeepCopy()
}

// process is one that wants to lead.
type process struct {
	line *line
	stop context.CancelCauseFunc
	gone chan struct{}
	// began and ended are told when it leads, and with which cause no more.
	began chan struct{}
	ended chan error
}

// stage counts who leads.
type stage struct {
	t       *testing.T
	mu      sync.Mutex
	leading int
}

var errStopped = errors.New("the test stops it")

func (s *stage) start(to *leases) *process {
	p := &process{line: &line{to: to}, gone: make(chan struct{}), began: make(chan struct{}, 10), ended: make(chan error, 10)}
	ctx, stop := context.WithCancelCause(context.Background())
	p.stop = stop
	lease := Lease{Leases: p.line, Namespace: "n", Name: "l", Log: slog.New(slog.NewTextHandler(s.t.Output(), nil))}
	go func() {
		defer close(p.gone)
		lease.Lead(ctx, func(ctx context.Context) {
			s.mu.Lock()
			if s.leading++; s.leading > 1 {
				s.t.Error("two lead at the same time")
			}
			s.mu.Unlock()
			p.began <- struct{}{}
			<-ctx.Done()
			time.Sleep(time.Second) // what was under way ends
			s.mu.Lock()
			s.leading--
			s.mu.Unlock()
			p.ended <- context.Cause(ctx)
		})
	}()
	return p
}

// within fails the test when something takes longer, by the bubble's clock.
func within[T any](t *testing.T, limit time.Duration, what string, c <-chan T) T {
	t.Helper()
	began := time.Now()
	select {
	case v := <-c:
		t.Logf("%s: after %v", what, time.Since(began))
		return v
	case <-time.After(limit):
		t.Fatalf("%s: not within %v", what, limit)
		panic("unreachable")
	}
}

func never[T any](t *testing.T, limit time.Duration, what string, c <-chan T) {
	t.Helper()
	select {
	case <-c:
		t.Error(what)
	case <-time.After(limit):
	}
}

func TestLease(t *testing.T) {
	// run gives a test two processes, of which the first leads.
	run := func(name string, test func(t *testing.T, s *stage, first, second *process)) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, server := &stage{t: t}, &leases{}
				first := s.start(server)
				within(t, time.Second, "the first leads", first.began)
				second := s.start(server)
				never(t, time.Minute, "both lead", second.began)
				test(t, s, first, second)
				for _, p := range []*process{first, second} {
					p.line.set(func(l *line) {
						if l.cut != nil {
							close(l.cut)
						}
						l.cut, l.slow, l.refuse = nil, 0, nil
					})
					p.stop(errStopped)
					within(t, 10*time.Second, "it ends", p.gone)
				}
			})
		})
	}
	run("one that leaves is replaced at once", func(t *testing.T, _ *stage, first, second *process) {
		first.stop(errStopped)
		if err := within(t, 2*time.Second, "the first ends", first.ended); !errors.Is(err, errStopped) {
			t.Errorf("it ended for %v", err)
		}
		within(t, 5*time.Second, "the second leads", second.began)
	})
	run("one that is killed is replaced within 20 s", func(t *testing.T, _ *stage, first, second *process) {
		// A killed process says nothing more; that it goes on here is what the
		// count of leaders is about.
		first.line.set(func(l *line) { l.cut = make(chan struct{}) })
		within(t, 20*time.Second, "the second leads", second.began)
	})
	run("one that is cut off stops before another begins", func(t *testing.T, _ *stage, first, second *process) {
		first.line.set(func(l *line) { l.cut = make(chan struct{}) })
		if err := within(t, leaseUsable+2*time.Second, "the first ends", first.ended); !errors.Is(err, providers.ErrUnavailable) {
			t.Errorf("it ended for %v", err)
		}
		within(t, 20*time.Second, "the second leads", second.began)
		// When it is back it does not take away what the second has.
		first.line.set(func(l *line) { close(l.cut); l.cut = nil })
		never(t, time.Minute, "the first leads again", first.began)
		second.stop(errStopped)
		within(t, 5*time.Second, "the first leads again", first.began)
	})
	run("slow answers", func(t *testing.T, _ *stage, first, second *process) {
		// The API server has taken what its answer is late for.
		first.line.set(func(l *line) { l.slow = 5900 * time.Millisecond })
		time.Sleep(2 * time.Minute)
		first.line.set(func(l *line) { l.cut = make(chan struct{}) })
		time.Sleep(time.Minute)
		if len(second.began) == 0 {
			t.Error("no process leads")
		}
	})
	run("an account without the right", func(t *testing.T, _ *stage, first, second *process) {
		no := apierrors.NewForbidden(resource, "l", errors.New("no"))
		first.line.set(func(l *line) { l.refuse = no })
		if err := (Lease{Leases: first.line, Name: "l"}).Check(t.Context()); !errors.Is(err, providers.ErrForbidden) {
			t.Errorf("check: %v", err)
		}
		if err := within(t, leaseUsable+2*time.Second, "the first ends", first.ended); !errors.Is(err, providers.ErrUnavailable) {
			t.Errorf("it ended for %v", err)
		}
		within(t, 20*time.Second, "the second leads", second.began)
	})
}

// The leases of many pools do not delay each other's renewals.
func TestLeasesHaveNoRateLimit(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"apiVersion":"coordination.k8s.io/v1","kind":"Lease"}`)
	}))
	defer server.Close()
	client, err := NewLeases(&rest.Config{Host: server.URL, QPS: 1, Burst: 1})
	if err != nil {
		t.Fatal(err)
	}
	// A client with a limit fails at once if it would exceed the deadline.
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for range 200 {
		if _, err := client.Leases("n").Get(ctx, "l", metav1.GetOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}
