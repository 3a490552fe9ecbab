package agent

import (
	"crypto/rand"
	"time"

	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

const (
	// keepEnded is how many ended commands are kept at most; beyond it the
	// oldest is forgotten before its time.
	keepEnded = 10_000
	// keepOutput is how much output of ended commands stays in memory.
	keepOutput = 2 << 20
	// keepSpilled is how many ended commands may have a spill file.
	keepSpilled = 64
	// retention is how long the end of a command is kept.
	retention = time.Hour
	// textLen is how much of a command's text is kept for ListProcesses.
	textLen = 256
)

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
	a.forgetOld(time.Now())
	if a.stopping {
		return nil, false, stopping()
	}
	if c := a.commands[id]; c != nil {
		if c.hash != hash {
			return nil, false, execReused(id)
		}
		return c, false, nil
	}
	text := commandText(r)
	c = &command{
		agent: a, id: id, hash: hash, text: string([]byte(text[:min(len(text), textLen)])),
		detached: r.GetDetach(), terminal: r.GetTerminal() != nil, patience: r.GetDisconnectGrace().AsDuration(),
		retention: retention,
		ready:     make(chan struct{}), settled: make(chan struct{}), done: make(chan struct{}),
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
			c.pump.run()
		}()
	}
}

// find returns a command that was started.
func (a *Agent) find(id string) (*command, error) {
	a.mu.Lock()
	c := a.commands[id]
	a.mu.Unlock()
	if c == nil {
		return nil, execNotFound(id)
	}
	<-c.ready
	if c.failed != nil {
		return nil, execNotFound(id)
	}
	return c, nil
}

// retire keeps the end of a command of which nothing runs any more.
func (a *Agent) retire(c *command) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ended = append(a.ended, c)
	a.idle.Reset(idleTime)
	c.held = c.log.Memory()
	a.held += c.held
	if c.held > keepOutput/32 || a.held > keepOutput {
		a.park()
	}
	a.forgetOld(time.Now())
}

// park moves output of ended commands out of memory, the largest part to spill
// files, and forgets the oldest where there is none. It needs mu.
func (a *Agent) park() {
	for i := len(a.ended) - 1; i >= 0; i-- {
		c := a.ended[i]
		if c.held <= keepOutput/32 {
			continue
		}
		c.log.Park()
		a.held -= c.held
		c.held = c.log.Memory()
		a.held += c.held
	}
	for i := 0; i < len(a.ended) && a.held > keepOutput; i++ {
		c := a.ended[i]
		if c.held > 0 {
			c.log.Forget()
			a.held -= c.held
			c.held = 0
		}
	}
	spilled := 0
	for i := len(a.ended) - 1; i >= 0; i-- {
		if !a.ended[i].log.Spilled() {
			continue
		}
		if spilled++; spilled > keepSpilled {
			c := a.ended[i]
			c.log.Forget()
			a.held -= c.held
			c.held = 0
		}
	}
}

// forgetOld forgets commands whose time is over. It needs mu.
func (a *Agent) forgetOld(now time.Time) {
	n := 0
	for _, c := range a.ended {
		if len(a.ended)-n <= keepEnded && now.Sub(c.ending) < c.retention {
			break
		}
		n++
		a.held -= c.held
		delete(a.commands, c.id)
		c.free()
	}
	if n > 0 {
		a.ended = append([]*command(nil), a.ended[n:]...)
	}
}

func (a *Agent) exitOf(c *command) *sandboxv1.Exited {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.exited
}
