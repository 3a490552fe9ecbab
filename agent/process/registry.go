package process

import (
	"context"
	"crypto/rand"
	"time"

	"github.com/sandgate/sandgate/agent/history"
	"github.com/sandgate/sandgate/agent/spawn"
	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// textLen is how much of a command line is kept for ListProcesses.
const textLen = 256

// claim returns the command with the request's exec_id, or registers a new one.
// The caller must start a new one and then call setReady.
func (s *Service) claim(ctx context.Context, r *sandboxv1.ExecuteRequest, limits *agentv1.Limits) (c *command, isNew bool, err error) {
	id := r.GetExecId()
	var hash [32]byte
	if id != "" {
		hash = requestHash(r)
	} else {
		id = "x-" + rand.Text()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended.Trim(time.Now())
	if s.stopping {
		return nil, false, stopping()
	}
	if c := s.registered(id); c != nil {
		if c.hash != hash {
			return nil, false, execReused(id)
		}
		return c, false, nil
	}
	if s.ended.Forgot(id) {
		return nil, false, execForgotten(id)
	}
	text := commandText(r)
	c = &command{
		service: s, id: id, hash: hash, text: string([]byte(text[:min(len(text), textLen)])),
		detached: r.GetDetach(), terminal: r.GetTerminal() != nil, disconnectGrace: r.GetDisconnectGrace().AsDuration(),
		retention: history.Retention, traceParent: traceContextOf(ctx).sampled(),
		ready: make(chan struct{}), drained: make(chan struct{}),
	}
	if d := limits.GetEndRetention(); d != nil {
		c.retention = d.AsDuration()
	}
	s.commands[id] = c
	return c, true, nil
}

// setReady ends the start of a new command. A command that failed to start is
// forgotten. One that started after Stop gave up waiting for it is killed.
func (s *Service) setReady(c *command, err error) {
	c.failed = err
	s.mu.Lock()
	if err != nil {
		delete(s.commands, c.id)
	}
	late := s.stopping
	s.mu.Unlock()
	close(c.ready)
	if err != nil {
		return
	}
	s.wg.Go(func() { s.recovery.Guard("a command's pump", c.pump.run) })
	if late {
		s.recovery.Guard("the stop of a command", c.stop)
	}
}

// command returns the command that a call names.
func (s *Service) command(id string) (*command, error) {
	s.touch()
	if err := checkExecID(id, false); err != nil {
		return nil, err
	}
	return s.find(id)
}

// find returns a command that was started.
func (s *Service) find(id string) (*command, error) {
	s.mu.Lock()
	c := s.registered(id)
	s.mu.Unlock()
	if c == nil {
		return nil, execNotFound(id)
	}
	<-c.ready
	if c.failed != nil {
		return nil, execNotFound(id)
	}
	return c, nil
}

// registered returns a command that runs or is in the history, else nil. It
// requires mu.
func (s *Service) registered(id string) *command {
	if c := s.commands[id]; c != nil {
		return c
	}
	if e, ok := s.ended.Find(id); ok {
		return s.load(e)
	}
	return nil
}

// retire moves a command whose pump has ended to the history.
func (s *Service) retire(c *command) {
	e := history.Encode(history.Command{
		ID: c.id, Text: c.text, Hash: c.hash, Detached: c.detached, Terminal: c.terminal, Pid: c.proc.Pid,
		Start: c.start, End: c.endTime, Retention: c.retention, Stdin: c.stdin.taken(), TraceParent: c.traceParent,
		Exited: c.exitedEvent(), Log: c.log, Tree: c.tree,
	})
	logKept := func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.commands, c.id)
		s.ended.Add(e)
		s.ended.Trim(time.Now())
		s.idle.Reset(idleTime)
		return e.OwnsLog()
	}()
	c.setRetired(logKept)
}

// closed is the channel of events that are over.
var closed = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// load returns an ended command for one caller.
func (s *Service) load(e history.Command) *command {
	return &command{
		service: s, id: e.ID, hash: e.Hash, text: e.Text, detached: e.Detached, terminal: e.Terminal, traceParent: e.TraceParent,
		retention: e.Retention, proc: &spawn.Process{Pid: e.Pid, PidFD: -1, Reports: -1},
		tree: e.Tree, start: e.Start, ready: closed, drained: closed, log: e.Log,
		stdin: newStdin(e.Terminal, e.Stdin), state: stateSealed, endTime: e.End, exited: e.Exited,
	}
}
