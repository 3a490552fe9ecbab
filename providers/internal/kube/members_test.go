package kube

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// member is a process that has joined.
type member struct {
	line *line
	stop context.CancelFunc
	gone chan struct{}
	self string
	live []string
}

func join(t *testing.T, to *leases) *member {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	m := &member{line: &line{to: to}, stop: cancel, gone: make(chan struct{})}
	go func() {
		defer close(m.gone)
		Members{Leases: m.line, Name: "servers", Log: slog.New(slog.DiscardHandler)}.Join(ctx, func(self string, live []string) {
			m.self, m.live = self, live
		})
	}()
	return m
}

func (m *member) leave() {
	m.stop()
	<-m.gone
}

// sees waits and checks how many live members a member sees.
func (m *member) sees(t *testing.T, after time.Duration, want int) {
	t.Helper()
	time.Sleep(after)
	synctest.Wait()
	if len(m.live) != want || !strings.Contains(strings.Join(m.live, " "), m.self) {
		t.Errorf("%s sees %v, want %d", m.self, m.live, want)
	}
}

// Members see who joins, leaves and crashes, and agree; one that comes back counts
// again.
func TestMembersSeeJoinsLeavesAndCrashes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to := &leases{}
		first := join(t, to)
		first.sees(t, time.Millisecond, 1)
		second, third := join(t, to), join(t, to)
		for _, m := range []*member{first, second, third} {
			m.sees(t, 2*heartbeatInterval, 3)
		}
		if a, b := strings.Join(first.live, " "), strings.Join(second.live, " "); a != b || first.self == second.self {
			t.Errorf("%s and %s", a, b)
		}
		third.leave()
		first.sees(t, 2*heartbeatInterval, 2)

		// The others notice a crash, and the one without the API server keeps its view.
		refused := errors.New("the test cuts it off")
		second.line.set(func(l *line) { l.refuse = refused })
		first.sees(t, memberTimeout+2*heartbeatInterval, 1)
		second.sees(t, 0, 2)
		second.line.set(func(l *line) { l.refuse = nil })
		first.sees(t, 2*heartbeatInterval, 2)

		// A crashed member's annotation is removed.
		second.line.set(func(l *line) { l.refuse = refused })
		first.sees(t, memberForgotten+2*heartbeatInterval, 1)
		if got := len(to.lease.Annotations); got != 1 {
			t.Errorf("%d annotations: %v", got, to.lease.Annotations)
		}
		second.leave()
		first.leave()
		if len(to.lease.Annotations) != 0 {
			t.Errorf("left behind: %v", to.lease.Annotations)
		}
	})
}
