package process

import (
	"context"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// maxListedEnded bounds the ended commands of one reply. The server rejects
// replies of more than 4 MiB or 131 072 fields; a command has about 600 bytes and
// at most 27 fields.
const maxListedEnded = 4096

// ListProcesses lists the commands with live processes and, if requested, ended
// ones.
func (s *Service) ListProcesses(_ context.Context, r *sandboxv1.ListProcessesRequest) (*sandboxv1.ListProcessesResponse, error) {
	all, list := s.known(r.GetIncludeEnded())
	for _, c := range all {
		select {
		case <-c.ready:
		default:
			continue
		}
		if c.failed != nil {
			continue
		}
		if p := c.describe(); p.GetExited() == nil || p.GetLiveProcesses() > 0 || r.GetIncludeEnded() {
			list = append(list, p)
		}
	}
	slices.SortFunc(list, func(x, y *sandboxv1.Process) int {
		return x.GetStartTime().AsTime().Compare(y.GetStartTime().AsTime())
	})
	list = newest(list, maxListedEnded)
	return &sandboxv1.ListProcessesResponse{Processes: list, Incarnation: s.cfg.Incarnation}, nil
}

// newest removes the oldest of the ended commands without live processes until
// at most so many are left. The list is sorted by start time.
func newest(list []*sandboxv1.Process, most int) []*sandboxv1.Process {
	isEnded := func(p *sandboxv1.Process) bool { return p.GetExited() != nil && p.GetLiveProcesses() == 0 }
	ended := 0
	for _, p := range list {
		if isEnded(p) {
			ended++
		}
	}
	return slices.DeleteFunc(list, func(p *sandboxv1.Process) bool {
		if ended <= most || !isEnded(p) {
			return false
		}
		ended--
		return true
	})
}

// known returns the commands that are not retired, and describes retired ones:
// all of them, or only those with live processes.
func (s *Service) known(ended bool) (running []*command, list []*sandboxv1.Process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.commands {
		running = append(running, c)
	}
	return running, s.ended.List(ended)
}

func (c *command) describe() *sandboxv1.Process {
	p := &sandboxv1.Process{
		ExecId: c.id, Command: strings.ToValidUTF8(c.text, "\uFFFD"), StartTime: timestamppb.New(c.start),
		Detached: c.detached, Terminal: c.terminal,
	}
	p.FirstPosition, p.Position = c.log.Range()
	c.mu.Lock()
	p.Exited, p.Attached = c.exited, int32(c.followers)
	c.mu.Unlock()
	if p.GetExited() == nil {
		p.Pid = int32(c.proc.Pid)
	}
	p.LiveProcesses = int32(len(c.tree.Pids()))
	return p
}
