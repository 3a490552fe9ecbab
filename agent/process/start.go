package process

import (
	"context"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/agent/spawn"
	"github.com/sandgate/sandgate/agent/tree"
	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/streaming"
)

// oomScore is the oom_score_adj of commands above the agent's: the kernel kills
// them before the agent.
const oomScore = 500

// startCommand starts c as requested and fills it in. On an error it leaves
// nothing behind.
func (s *Service) startCommand(ctx context.Context, c *command, r *sandboxv1.ExecuteRequest, call *agentv1.CallContext) error {
	env := s.environ(r, traceContextOf(ctx))
	if certificate := call.GetEgressAuthority(); len(certificate) > 0 && s.cfg.Trust != nil {
		env = s.cfg.Trust(certificate, env)
	}
	spec := spawn.Spec{Env: env, Dir: r.GetCwd(), Cgroup: -1, OOMScoreAdj: oomScore, Terminal: r.GetTerminal() != nil}
	if spec.Dir == "" {
		spec.Dir = s.cfg.Workdir
	}
	std := newStdio()
	ok := false // stays false if this panics
	defer func() {
		closeAll(std.child)
		if !ok {
			closeAll(std.parent)
		}
	}()
	if err := setProgram(&spec, r, std); err != nil {
		return err
	}
	if err := std.open(r); err != nil {
		return startError(spec.Path, spec.Dir, err)
	}
	copy(spec.Files[:], std.files[:])

	p, err := newPump(c, std.inputs)
	if err != nil {
		return startError(spec.Path, spec.Dir, err)
	}
	c.log = streaming.NewLog(s.logOptions(r, call.GetLimits(), p))
	p.log, c.pump = c.log, p
	defer func() {
		if !ok {
			p.abandon()
			c.log.Close()
		}
	}()

	rules, unbound, err := s.writeRules(call.GetConfinement().GetPolicies())
	if err != nil {
		return err
	}
	if c.unbound = unbound; rules != nil {
		defer func() { _ = rules.Close() }()
		spec.Ruleset = int(rules.Fd()) + 1
	}
	c.oomsBefore, _ = s.oom.Kills()
	c.refusedBefore, _ = s.pids.Refused()
	if s.cfg.Refusals != nil {
		c.networkBefore = s.cfg.Refusals.Refused()
	}
	if err := s.spawn(ctx, c, spec, r); err != nil {
		return err
	}
	s.running.Add(1)
	if d := timeout(r, call.GetLimits()); d > 0 {
		c.timeout = time.AfterFunc(d, func() {
			s.recovery.Guard("the kill of a command", func() { c.kill(causeTimeout) })
			c.log.SetPolicy(streaming.Evict)
		})
	}
	c.stdin = newStdin(c.terminal, 0)
	if std.stdin >= 0 {
		c.stdin.file = os.NewFile(uintptr(std.stdin), "stdin")
		c.writeFirstInput(ctx, r)
	}
	ok = true
	return nil
}

func (s *Service) logOptions(r *sandboxv1.ExecuteRequest, limits *agentv1.Limits, p *pump) streaming.Options {
	o := streaming.Options{
		Capacity: limits.GetOutputLogBytes(), Dir: s.cfg.StateDir, Budget: s.budget,
		Max: maxOutput(r, limits), Room: p.logHasRoom,
	}
	if r.GetDetach() || r.GetOnFull() == sandboxv1.OnFull_ON_FULL_EVICT {
		o.Policy = streaming.Evict
	}
	return o
}

// spawn starts the process in a tree of its own, and has the pump watch it.
func (s *Service) spawn(ctx context.Context, c *command, spec spawn.Spec, r *sandboxv1.ExecuteRequest) (err error) {
	var group *tree.Cgroup
	if s.cgroups != nil {
		if group, err = s.cgroups.Take(); err != nil {
			return exhausted(err)
		}
		spec.Cgroup = group.FD()
	}
	c.start = time.Now()
	s.reaper.Begin()
	c.proc, err = s.startRetrying(ctx, spec)
	if err != nil {
		s.reaper.Abandon()
		if group != nil {
			group.Release()
		}
		name := spec.Path
		if argv := r.GetArgv(); argv != nil {
			name = argv.GetArgs()[0]
		}
		return startError(name, spec.Dir, err)
	}
	s.reaper.Own(c.proc)
	if group != nil {
		c.tree = group
		c.pump.watch(c.proc.PidFD, tagLeader)
	} else {
		c.tree = tree.NewSubreaper(c.proc, s.reaper)
		c.pump.watch(c.proc.Reports, tagReports)
	}
	return nil
}

// startRetrying retries for half a second while there are too many processes:
// those of a command that was just killed may not be reaped yet. It retries too if
// another command ended the supervisor before that started this one.
func (s *Service) startRetrying(ctx context.Context, spec spawn.Spec) (*spawn.Process, error) {
	const tries, backoff = 20, 25 * time.Millisecond
	for try := 1; ; try++ {
		p, err := spawn.Start(spec)
		again := errors.Is(err, unix.EAGAIN) || errors.Is(err, spawn.ErrSupervisorLost)
		if !again || try == tries {
			return p, err
		}
		select {
		case <-time.After(backoff):
		case <-ctx.Done():
			return nil, err
		}
	}
}
