package process

import (
	"context"
	"errors"
	"strings"

	"golang.org/x/sys/unix"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// SignalProcess sends a signal to a command's leader, its process group or all
// its processes.
func (s *Service) SignalProcess(_ context.Context, r *sandboxv1.SignalProcessRequest) (*sandboxv1.SignalProcessResponse, error) {
	c, err := s.command(r.GetExecId())
	if err != nil {
		return nil, err
	}
	name := strings.ToUpper(r.GetSignal())
	if !strings.HasPrefix(name, "SIG") {
		name = "SIG" + name
	}
	sig := unix.SignalNum(name)
	if sig == 0 {
		return nil, invalid("signal", "%q is no signal", r.GetSignal())
	}
	return &sandboxv1.SignalProcessResponse{Delivered: c.signal(sig, r.GetScope())}, nil
}

// signal reports whether a process received the signal.
func (c *command) signal(sig unix.Signal, scope sandboxv1.SignalScope) bool {
	switch scope {
	case sandboxv1.SignalScope_SIGNAL_SCOPE_LEADER, sandboxv1.SignalScope_SIGNAL_SCOPE_GROUP:
		select {
		case <-c.drained:
			return false
		default:
		}
		c.signals.Or(1 << uint(sig))
		return c.signalLeader(sig, scope == sandboxv1.SignalScope_SIGNAL_SCOPE_GROUP)
	default:
		if sig == unix.SIGKILL {
			n := len(c.tree.Pids())
			if n > 0 {
				c.signals.Or(1 << uint(sig))
				c.kill(causeCaller)
			}
			return n > 0
		}
		c.signals.Or(1 << uint(sig))
		return c.tree.Signal(sig) > 0
	}
}

// pidfdSignalGroup makes pidfd_send_signal signal the leader's process group
// (PIDFD_SIGNAL_PROCESS_GROUP, since Linux 6.9).
const pidfdSignalGroup = 4

// signalLeader signals the leader or its process group. It uses the pidfd,
// because another process may have the pid once the leader is reaped.
func (c *command) signalLeader(sig unix.Signal, group bool) bool {
	c.pidMu.Lock()
	defer c.pidMu.Unlock()
	flags, pid := 0, c.proc.Pid
	if group {
		flags, pid = pidfdSignalGroup, -pid
	}
	if c.proc.PidFD >= 0 {
		err := unix.PidfdSendSignal(c.proc.PidFD, sig, nil, flags)
		tooOld := errors.Is(err, unix.ENOSYS) || group && errors.Is(err, unix.EINVAL)
		if !tooOld && !errors.Is(err, unix.EPERM) { // EPERM is a seccomp filter's
			return err == nil
		}
	}
	// Until the leader is reaped, the pid is its own.
	return !c.reaped && unix.Kill(pid, sig) == nil
}
