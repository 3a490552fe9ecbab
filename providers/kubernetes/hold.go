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
	beatInterval = 4 * time.Second
	// beatStale is how long a record may stand still while it is created or
	// deleted before somebody else goes on with it.
	beatStale = 5 * beatInterval
	// writeTimeout bounds a write that the caller's context does not bound: what
	// was sent may have been done, so its answer must be waited for.
	writeTimeout = 15 * time.Second
)

var errTakenOver = fmt.Errorf("another server has taken this sandbox over: %w", providers.ErrUnavailable)

// hold is the right to create or delete one sandbox. While it is held its
// record keeps beating; when another took it over, its context ends.
type hold struct {
	p      *Provider
	holder string // its own name, as the record has it
	cancel context.CancelCauseFunc
	done   chan struct{}

	mu   sync.Mutex
	cm   *corev1.ConfigMap
	rec  *record
	next []func(*record) // to be written with the next change
}

// keep begins to beat in the name of a holder. The hold must be released.
func (p *Provider) keep(ctx context.Context, cm *corev1.ConfigMap, rec *record, holder string) (context.Context, *hold) {
	ctx, cancel := context.WithCancelCause(ctx)
	h := &hold{p: p, holder: holder, cancel: cancel, done: make(chan struct{}), cm: cm, rec: rec}
	go h.run(ctx)
	return ctx, h
}

func (h *hold) run(ctx context.Context) {
	defer close(h.done)
	tick := time.NewTicker(beatInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := h.change(ctx, func(r *record) { r.Beat++ }); errors.Is(err, errTakenOver) {
			h.cancel(err)
			return
		}
	}
}

// release stops the beat.
func (h *hold) release() {
	h.cancel(nil)
	<-h.done
}

// along has something written with the next change.
func (h *hold) along(apply func(*record)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.next = append(h.next, apply)
}

// changeTries bounds how often a change is written again because its answer, or
// that of a write before, was lost.
const changeTries = 3

// change writes the record, if nobody else has.
func (h *hold) change(ctx context.Context, apply func(*record)) error {
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
			// It may have been done all the same. Then this one conflicts.
			continue
		}
		if err := h.refresh(ctx); err != nil {
			return err
		}
	}
	return err
}

// write needs h.mu. The error is the cluster's conflict when the record is not
// what this hold has seen last.
func (h *hold) write(ctx context.Context, apply func(*record)) error {
	next := *h.rec
	next.Holder = h.holder
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

// refresh needs h.mu. It reads what a write of this hold has left whose answer
// was lost. What another has written is a takeover.
func (h *hold) refresh(ctx context.Context) error {
	cm, rec, err := h.p.read(ctx, h.cm.Name)
	switch {
	case errors.Is(err, providers.ErrNotFound), errors.Is(err, errUnreadable):
		return errTakenOver
	case err != nil:
		return err
	case cm.UID != h.cm.UID || rec.Holder != h.holder:
		return errTakenOver
	}
	h.cm, h.rec = cm, rec
	return nil
}

// newHolder names one creation or deletion. No other has the name.
func newHolder() string { return rand.Text() }

// now returns the record and its object as last written.
func (h *hold) now() (*corev1.ConfigMap, *record) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.cm, h.rec
}

// await follows a record that somebody else holds until it is in another phase
// or gone. Once it has stood still for too long it is returned as stale.
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
		stale = time.Since(since) > beatStale
		return stale, nil
	})
	return stale, err
}
