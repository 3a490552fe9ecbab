package kubernetes

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/kube"
)

const (
	heartbeatInterval = 4 * time.Second
	// heartbeatStale is the time without a heartbeat after which another server
	// takes over a creation or deletion.
	heartbeatStale = 5 * heartbeatInterval
	// writeTimeout bounds a write that the caller's context does not bound: a write
	// that was sent may have been applied, so its answer matters.
	writeTimeout = 15 * time.Second
)

var errTakenOver = fmt.Errorf("another server has taken this sandbox over: %w", providers.ErrUnavailable)

// ownership is the right to create or delete one sandbox. Heartbeats in the record
// renew it; when another server takes over, its context ends.
type ownership struct {
	p      *Provider
	owner  string // as in the record
	cancel context.CancelCauseFunc
	done   chan struct{}

	mu   sync.Mutex
	cm   *corev1.ConfigMap
	rec  *record
	next []func(*record) // to be written with the next change
}

// own starts the heartbeats of an owner. The ownership must be released.
func (p *Provider) own(ctx context.Context, cm *corev1.ConfigMap, rec *record, owner string) (context.Context, *ownership) {
	ctx, cancel := context.WithCancelCause(ctx)
	h := &ownership{p: p, owner: owner, cancel: cancel, done: make(chan struct{}), cm: cm, rec: rec}
	go h.run(ctx)
	return ctx, h
}

func (h *ownership) run(ctx context.Context) {
	defer close(h.done)
	tick := time.NewTicker(heartbeatInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := h.change(ctx, func(r *record) { r.Heartbeat++ }); errors.Is(err, errTakenOver) {
			h.cancel(err)
			return
		}
	}
}

// release stops the heartbeats.
func (h *ownership) release() {
	h.cancel(nil)
	<-h.done
}

// along adds a change to the next write.
func (h *ownership) along(apply func(*record)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.next = append(h.next, apply)
}

// changeTries bounds the attempts to write a change whose answer, or that of an
// earlier write, was lost.
const changeTries = 3

// change writes the record, unless another server has changed it.
func (h *ownership) change(ctx context.Context, apply func(*record)) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
	defer cancel()
	var err error
	for range changeTries {
		if err = h.write(ctx, apply); err == nil || errors.Is(err, errTakenOver) {
			return err
		}
		if !apierrors.IsConflict(err) {
			// It may have been applied all the same. Then the next attempt conflicts.
			continue
		}
		if err := h.refresh(ctx); err != nil {
			return err
		}
	}
	return err
}

// write needs h.mu. The error is the cluster's conflict if the record has changed
// since this ownership read or wrote it.
func (h *ownership) write(ctx context.Context, apply func(*record)) error {
	next := *h.rec
	next.Owner = h.owner
	for _, apply := range append(h.next, apply) {
		apply(&next)
	}
	cm := h.cm.DeepCopy()
	if err := next.put(cm); err != nil {
		return err
	}
	written, err := h.p.records().Update(ctx, cm, metav1.UpdateOptions{})
	switch {
	case apierrors.IsConflict(err):
		return err
	case apierrors.IsNotFound(err):
		return errTakenOver
	case err != nil:
		return kube.Wrap(ctx, "write the record of "+cm.Name, err)
	}
	h.cm, h.rec, h.next = written, &next, nil
	return nil
}

// refresh needs h.mu. It reads the result of an own write whose answer was lost. A
// write by another owner is a takeover.
func (h *ownership) refresh(ctx context.Context) error {
	cm, rec, err := h.p.read(ctx, h.cm.Name)
	switch {
	case errors.Is(err, providers.ErrNotFound), errors.Is(err, errUnreadable):
		return errTakenOver
	case err != nil:
		return err
	case cm.UID != h.cm.UID || rec.Owner != h.owner:
		return errTakenOver
	}
	h.cm, h.rec = cm, rec
	return nil
}

// newOwner returns a unique identity of one creation or deletion.
func newOwner() string { return rand.Text() }

// now returns the record and its object as last written.
func (h *ownership) now() (*corev1.ConfigMap, *record) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.cm, h.rec
}

// await follows a record of another owner until it leaves a phase or is deleted. It
// reports true if the heartbeats have stopped.
func (p *Provider) await(ctx context.Context, name string, from phase) (stale bool, err error) {
	var version string
	var since time.Time
	err = kube.Follow(ctx, p.recordObject(name), func(cm *corev1.ConfigMap, exists bool) (bool, error) {
		if !exists {
			return true, nil
		}
		rec, err := decodeRecord(cm)
		if err != nil || rec.Phase != from {
			return true, err
		}
		if cm.ResourceVersion != version {
			version, since = cm.ResourceVersion, time.Now()
		}
		stale = time.Since(since) > heartbeatStale
		return stale, nil
	})
	return stale, err
}
