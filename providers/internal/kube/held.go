package kube

import (
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
)

const (
	// HoldFlag makes the agent's connect say one byte, wait for one, and only then
	// go on to the agent, which would hang up on who says nothing.
	HoldFlag = "--hold"

	// heldAtMost bounds the streams of one server that nobody uses.
	heldAtMost = 32
	// holdingAtOnce bounds how many are opened at the same time.
	holdingAtOnce = 2
	// holdTimeout bounds the opening of one, and holdPause comes after one that
	// failed or ended.
	holdTimeout = 30 * time.Second
	holdPause   = 30 * time.Second
	// callTimeout is how long an agent behind a held stream may take to speak. A
	// new stream takes less than that.
	callTimeout = time.Second
	// leaveTime is how long the stream to a pod that waits no more is kept for
	// the one who has claimed it, who may learn of it later.
	leaveTime = 5 * time.Second

	watchRelist = 5 * time.Minute
	watchRetry  = 2 * time.Second
)

// Holder keeps an exec stream open to each pod that waits in a pool, so that
// whoever claims one need not wait for an exec.
type Holder struct {
	executor *Executor
	slots    chan struct{}
	work     sync.WaitGroup

	mu     sync.Mutex
	closed bool
	pods   map[types.UID]*heldPod
}

// heldPod is a pod that waits, and the stream to it, which may be nil.
type heldPod struct {
	pool     string
	pod      *corev1.Pod
	conn     net.Conn
	opening  bool
	leaving  bool // it waits no more
	notUntil time.Time
}

// Waiting is a pool whose pods wait to be claimed.
type Waiting struct {
	Name string // of the pool, for Held
	Pods corev1client.PodInterface
	// Selector asks for its pods. An empty one is asked for again later.
	Selector func(ctx context.Context) (string, error)
	// Connect is the command that joins an exec to the agent in a pod, and where.
	// It reports false for a pod that does not wait, or not yet.
	Connect func(pod *corev1.Pod) (Container, []string, bool)
}

// NewHolder makes a Holder.
func NewHolder(e *Executor) *Holder {
	return &Holder{executor: e, slots: make(chan struct{}, holdingAtOnce), pods: make(map[types.UID]*heldPod)}
}

// Close ends all streams that nobody has taken. Tend must have returned.
func (h *Holder) Close() {
	h.mu.Lock()
	h.closed = true
	for uid := range h.pods {
		h.drop(uid)
	}
	h.mu.Unlock()
	h.work.Wait()
}

// Tend holds streams to a pool's pods until ctx ends. It is an aid: where the
// cluster does not answer there are none.
func (h *Holder) Tend(ctx context.Context, w Waiting) {
	defer h.keep(w.Name, nil)
	for ctx.Err() == nil {
		if h.round(ctx, w) == nil {
			continue
		}
		select {
		case <-ctx.Done():
		case <-time.After(watchRetry):
		}
	}
}

var errNoSelector = fmt.Errorf("the pool cannot be asked for its pods yet")

func (h *Holder) round(ctx context.Context, w Waiting) error {
	selector, err := w.Selector(ctx)
	if err != nil {
		return err
	}
	if selector == "" {
		return errNoSelector
	}
	list, err := w.Pods.List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return err
	}
	h.keep(w.Name, list.Items)
	for i := range list.Items {
		h.see(ctx, w, &list.Items[i])
	}
	seconds := int64(watchRelist.Seconds())
	events, err := w.Pods.Watch(ctx, metav1.ListOptions{
		LabelSelector: selector, ResourceVersion: list.ResourceVersion, TimeoutSeconds: &seconds,
	})
	if err != nil {
		return err
	}
	defer events.Stop()
	again := time.NewTicker(holdPause)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-again.C:
			for _, pod := range h.known(w.Name, false) {
				h.see(ctx, w, pod)
			}
		case e, open := <-events.ResultChan():
			if !open {
				return nil
			}
			pod, ok := e.Object.(*corev1.Pod)
			switch {
			case !ok:
				return fmt.Errorf("watch a pool's pods: %v", e.Type)
			case e.Type == watch.Deleted:
				h.leave(pod.UID)
			default:
				h.see(ctx, w, pod)
			}
		}
	}
}

// keep lets go of the pods of a pool that are not listed.
func (h *Holder) keep(pool string, listed []corev1.Pod) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for uid, held := range h.pods {
		if held.pool == pool && !slices.ContainsFunc(listed, func(p corev1.Pod) bool { return p.UID == uid }) {
			h.leaveLocked(uid, held)
		}
	}
}

// see notes a pod as it is now, and begins to open a stream to one that has
// none.
func (h *Holder) see(ctx context.Context, w Waiting, pod *corev1.Pod) {
	at, command, waits := w.Connect(pod)
	if !waits {
		h.leave(pod.UID)
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return
	}
	held := h.pods[pod.UID]
	if held == nil {
		held = &heldPod{pool: w.Name}
		h.pods[pod.UID] = held
	}
	held.pod, held.leaving = pod, false
	if held.conn != nil && !Alive(held.conn) {
		_ = held.conn.Close()
		held.conn, held.notUntil = nil, time.Now().Add(holdPause)
	}
	if held.conn != nil || held.opening || time.Now().Before(held.notUntil) || h.open() >= heldAtMost {
		return
	}
	held.opening = true
	h.work.Go(func() { h.hold(ctx, held, at, command) })
}

func (h *Holder) open() (n int) {
	for _, held := range h.pods {
		if held.conn != nil || held.opening {
			n++
		}
	}
	return n
}

func (h *Holder) hold(ctx context.Context, held *heldPod, at Container, command []string) {
	conn := h.connect(ctx, at, command)
	h.mu.Lock()
	defer h.mu.Unlock()
	held.opening = false
	if conn == nil {
		held.notUntil = time.Now().Add(holdPause)
		return
	}
	if h.closed || h.pods[held.pod.UID] != held {
		_ = conn.Close()
		return
	}
	held.conn = conn
}

// connect returns nil where there is no stream to be had, as from an agent that
// does not know how to be held.
func (h *Holder) connect(ctx context.Context, at Container, command []string) net.Conn {
	select {
	case h.slots <- struct{}{}:
	case <-ctx.Done():
		return nil
	}
	defer func() { <-h.slots }()
	ctx, cancel := context.WithTimeout(ctx, holdTimeout)
	defer cancel()
	conn, err := h.executor.Tunnel(ctx, at, append(slices.Clone(command), HoldFlag))
	if err != nil {
		return nil
	}
	if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
		_ = conn.Close()
		return nil
	}
	return conn
}

// leave ends the stream to a pod soon.
func (h *Holder) leave(uid types.UID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if held := h.pods[uid]; held != nil {
		h.leaveLocked(uid, held)
	}
}

func (h *Holder) leaveLocked(uid types.UID, held *heldPod) {
	if held.leaving {
		return
	}
	held.leaving = true
	time.AfterFunc(leaveTime, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.pods[uid] == held && held.leaving {
			h.drop(uid)
		}
	})
}

// Forget ends the stream to a pod, if there is one.
func (h *Holder) Forget(uid types.UID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.drop(uid)
}

func (h *Holder) drop(uid types.UID) {
	if held := h.pods[uid]; held != nil && held.conn != nil {
		_ = held.conn.Close()
	}
	delete(h.pods, uid)
}

// Held returns a pool's pods that have a stream, as they were last seen.
func (h *Holder) Held(pool string) []*corev1.Pod { return h.known(pool, true) }

func (h *Holder) known(pool string, withStream bool) []*corev1.Pod {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []*corev1.Pod
	for _, held := range h.pods {
		if held.pool == pool && !held.leaving && (held.conn != nil || !withStream) {
			out = append(out, held.pod)
		}
	}
	return out
}

// Take returns a connection on which the pod's agent has just spoken, or nil.
func (h *Holder) Take(uid types.UID) net.Conn {
	h.mu.Lock()
	held := h.pods[uid]
	if held == nil || held.conn == nil {
		h.mu.Unlock()
		return nil
	}
	conn := held.conn
	held.conn, held.notUntil = nil, time.Now().Add(holdPause)
	h.mu.Unlock()
	if err := call(conn); err != nil {
		_ = conn.Close()
		return nil
	}
	return conn
}

// call has connect go on to the agent, and waits for what that says first.
func call(conn net.Conn) error {
	if _, err := conn.Write([]byte{'\n'}); err != nil {
		return err
	}
	if t, ok := conn.(*tunnel); ok {
		return t.inbox.await(callTimeout)
	}
	return nil
}
