package agent

import (
	"crypto/rand"
	"time"

	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// textLen is how much of a command's text is kept for ListProcesses.
const textLen = 256

// claim finds or makes the command for an exec_id. When it is new, the caller
// must start it and then call launched.
func (a *Agent) claim(env *agentv1.ExecuteRequest) (c *command, fresh bool, err error) {
	r := env.GetRequest()
	id := r.GetExecId()
	var hash [32]byte
	if id != "" {
		hash = requestHash(r)
	} else {
		id = "x-" + rand.Text()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ended.trim(time.Now())
	if a.stopping {
		return nil, false, stopping()
	}
	if c := a.commands[id]; c != nil {
		if c.hash != hash {
			return nil, false, execReused(id)
		}
		return c, false, nil
	}
	if p := a.ended.byID[id]; p != nil {
		if p.hash != hash {
			return nil, false, execReused(id)
		}
		return p.revive(a), false, nil
	}
	if a.ended.forgot(id) {
		return nil, false, execForgotten(id)
	}
	text := commandText(r)
	c = &command{
		agent: a, id: id, hash: hash, text: string([]byte(text[:min(len(text), textLen)])),
		detached: r.GetDetach(), terminal: r.GetTerminal() != nil, patience: r.GetDisconnectGrace().AsDuration(),
		retention: retention,
		ready:     make(chan struct{}), settled: make(chan struct{}),
	}
	if d := env.GetLimits().GetEndRetention(); d != nil {
		c.retention = d.AsDuration()
	}
	a.commands[id] = c
	return c, true, nil
}

// launched tells those who joined that the command runs or could not start; a
// failed one is forgotten, so that its id may be tried again.
func (a *Agent) launched(c *command, err error) {
	c.failed = err
	if err != nil {
		a.mu.Lock()
		delete(a.commands, c.id)
		a.mu.Unlock()
	}
	close(c.ready)
	if err == nil {
		a.wg.Add(1)
		go func() {
			defer a.wg.Done()
			a.recovery.guard("a command's pump", c.pump.run)
		}()
	}
}

// find returns a command that was started.
func (a *Agent) find(id string) (*command, error) {
	c := a.lookUp(id)
	if c == nil {
		return nil, execNotFound(id)
	}
	<-c.ready
	if c.failed != nil {
		return nil, execNotFound(id)
	}
	return c, nil
}

func (a *Agent) lookUp(id string) *command {
	a.mu.Lock()
	defer a.mu.Unlock()
	c := a.commands[id]
	if p := a.ended.byID[id]; c == nil && p != nil {
		c = p.revive(a)
	}
	return c
}

// retire keeps the end of a command of which nothing runs any more, and lets
// go of everything else.
func (a *Agent) retire(c *command) {
	p := pastOf(c)
	func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.commands, c.id)
		a.ended.add(p)
		a.ended.trim(time.Now())
		a.idle.Reset(idleTime)
	}()
	c.leave(p.out != nil && p.out.log != nil)
}

func (a *Agent) exitOf(c *command) *sandboxv1.Exited {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.exited
}
