package kube

import (
	"context"
	"crypto/rand"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	coordination "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
)

const (
	// heartbeatInterval is the time between two heartbeats of a member.
	heartbeatInterval = 3 * time.Second
	// memberTimeout is how long a member is alive for the others without a heartbeat.
	// The last one is seen, and its age looked at, once in heartbeatInterval, so that a member
	// that crashes is noticed within memberTimeout and two memberBeats: 14 s.
	memberTimeout = 8 * time.Second
	// memberForgotten is when others remove a member that left without its own removal.
	memberForgotten = time.Minute
	// memberTries bounds the attempts of one heartbeat, since members write one object.
	memberTries = 5
	// memberPrefix begins the annotation with a member's heartbeat.
	memberPrefix = "member.sandgate.dev/"
)

// Members is the set of live servers that share a namespace: one Lease, in which each
// has an annotation with a counter.
type Members struct {
	Leases    coordinationv1.LeasesGetter
	Namespace string
	Name      string
	Log       *slog.Logger
}

// heartbeat is the last heartbeat of a member that this process has seen.
type heartbeat struct {
	count string
	seen  time.Time // by this process's clock, which no other's need agree with
}

// membership is one Join.
type membership struct {
	Members
	self       string
	count      int64
	heartbeats map[string]heartbeat
}

// Join implements providers.Membership.
func (m Members) Join(ctx context.Context, changed func(self string, live []string)) {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	// An annotation's name has at most 63 characters.
	j := &membership{Members: m, self: host[:min(len(host), 40)] + "-" + rand.Text()[:12], heartbeats: make(map[string]heartbeat)}
	j.self = strings.ToLower(j.self)
	tick := time.NewTicker(heartbeatInterval)
	defer tick.Stop()
	var known []string
	failing := false
	for {
		live, err := j.heartbeat(ctx)
		switch {
		case ctx.Err() != nil:
		case err != nil && !failing:
			failing = true
			m.Log.WarnContext(ctx, "the servers that share the namespace cannot be counted", "lease", m.Name, "error", err)
		case err == nil:
			failing = false
			if !slices.Equal(live, known) {
				known = live
				changed(j.self, live)
			}
		}
		select {
		case <-ctx.Done():
			leave, cancel := context.WithTimeout(context.WithoutCancel(ctx), heartbeatInterval)
			defer cancel()
			if err := j.leave(leave); err != nil {
				m.Log.DebugContext(ctx, "this server's end is noticed late", "lease", m.Name, "error", err)
			}
			return
		case <-tick.C:
		}
	}
}

// heartbeat writes this member's heartbeat and returns the live members, in order.
func (j *membership) heartbeat(ctx context.Context) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, heartbeatInterval)
	defer cancel()
	j.count++
	var live []string
	err := j.change(ctx, func(lease *coordination.Lease) {
		live = j.look(lease, time.Now())
		lease.Annotations[memberPrefix+j.self] = strconv.FormatInt(j.count, 10)
	})
	return live, err
}

func (j *membership) leave(ctx context.Context) error {
	return j.change(ctx, func(lease *coordination.Lease) { delete(lease.Annotations, memberPrefix+j.self) })
}

// look returns the live members of a Lease, and removes those that are long gone.
func (j *membership) look(lease *coordination.Lease, now time.Time) []string {
	live := []string{j.self}
	for name := range j.heartbeats {
		if _, ok := lease.Annotations[memberPrefix+name]; !ok {
			delete(j.heartbeats, name)
		}
	}
	for key, count := range lease.Annotations {
		name, ok := strings.CutPrefix(key, memberPrefix)
		if !ok || name == j.self {
			continue
		}
		b, known := j.heartbeats[name]
		if !known || b.count != count {
			b = heartbeat{count: count, seen: now}
			j.heartbeats[name] = b
		}
		switch silent := now.Sub(b.seen); {
		case silent > memberForgotten:
			delete(lease.Annotations, key)
		case silent <= memberTimeout:
			live = append(live, name)
		}
	}
	slices.Sort(live)
	return live
}

// change applies a change to the Lease, again if another member was faster.
func (j *membership) change(ctx context.Context, apply func(*coordination.Lease)) error {
	leases := j.Leases.Leases(j.Namespace)
	var err error
	for range memberTries {
		var lease *coordination.Lease
		lease, err = leases.Get(ctx, j.Name, metav1.GetOptions{})
		missing := apierrors.IsNotFound(err)
		if missing {
			lease, err = &coordination.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: j.Namespace, Name: j.Name}}, nil
		}
		if err != nil {
			break
		}
		if lease.Annotations == nil {
			lease.Annotations = make(map[string]string)
		}
		apply(lease)
		if missing {
			_, err = leases.Create(ctx, lease, metav1.CreateOptions{})
		} else {
			_, err = leases.Update(ctx, lease, metav1.UpdateOptions{})
		}
		if !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
			break
		}
	}
	return Wrap(ctx, "lease "+j.Name, err)
}
