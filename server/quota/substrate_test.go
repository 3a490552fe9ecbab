package quota

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandgate/sandgate/providers"
)

// substrate is a provider that only counts.
type substrate struct {
	providers.Provider
	mu        sync.Mutex
	sandboxes map[string]providers.Info
	most      map[string]int // at the same time, by tenant
	lists     atomic.Int32
	document  []byte
	largest   int         // of all documents
	conflicts func() bool // another process has changed the document: again
}

func newSubstrate() *substrate {
	return &substrate{sandboxes: make(map[string]providers.Info), most: make(map[string]int)}
}

func (s *substrate) ChangeLedger(ctx context.Context, _ string, change func([]byte) ([]byte, error)) error {
	for {
		s.mu.Lock()
		old := bytes.Clone(s.document)
		s.mu.Unlock()
		now, err := change(old)
		if err != nil || now == nil {
			return err
		}
		s.mu.Lock()
		done := bytes.Equal(old, s.document) && (s.conflicts == nil || !s.conflicts())
		if done {
			s.document, s.largest = now, max(s.largest, len(now))
		}
		s.mu.Unlock()
		if done || ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

func (s *substrate) Get(_ context.Context, name string) (providers.Info, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	info, ok := s.sandboxes[name]
	if !ok {
		return info, providers.ErrNotFound
	}
	return info, nil
}

func (s *substrate) List(_ context.Context, _ providers.Query) (providers.Page, error) {
	s.lists.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	var page providers.Page
	for _, info := range s.sandboxes {
		page.Sandboxes = append(page.Sandboxes, info)
	}
	return page, nil
}

func (s *substrate) Create(_ context.Context, name string, spec providers.Spec) (providers.Info, net.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	info, ok := s.sandboxes[name]
	if !ok {
		info = providers.Info{Name: name, Spec: spec, Incarnation: fmt.Sprint(rand.Int())}
		s.sandboxes[name] = info
	}
	for _, tenant := range []string{"", spec.Tenant} {
		s.most[tenant] = max(s.most[tenant], s.count(tenant))
	}
	return info, nil, nil
}

func (s *substrate) Delete(_ context.Context, name string, _ providers.Condition) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sandboxes, name)
	return nil
}

// count needs s.mu. Empty: all tenants'.
func (s *substrate) count(tenant string) int {
	n := 0
	for _, info := range s.sandboxes {
		if tenant == "" || info.Spec.Tenant == tenant {
			n++
		}
	}
	return n
}

func newBook(s *substrate, c Config) *Book { return NewBook(s, c, time.Minute) }

func specOf(tenant, principal string, memory int64) providers.Spec {
	return providers.Spec{Tenant: tenant, Principal: principal, Resources: providers.Resources{MemoryBytes: memory}}
}

// create creates a sandbox as the server does.
func create(t testing.TB, s *substrate, b *Book, name string, spec providers.Spec) error {
	t.Helper()
	if err := b.Reserve(t.Context(), name, spec); err != nil {
		return err
	}
	info, _, err := s.Create(t.Context(), name, spec)
	b.Settle(name, info.Incarnation)
	return err
}

func remove(s *substrate, b *Book, name string) {
	info, err := s.Get(context.Background(), name)
	if err == nil && s.Delete(context.Background(), name, providers.Condition{}) == nil {
		b.Forget(name, info.Incarnation)
	}
}

func isBeyond(err error, quota, scope string) bool {
	var e *Exceeded
	return errors.As(err, &e) && e.Quota == quota && e.Owner.Scope() == scope
}
