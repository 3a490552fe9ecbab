package docker

import "github.com/sandgate/sandgate/providers/internal/directory"

// layout is the state directory and names everything in it. A sandbox's user can write
// to its socket's directory, so other users of this machine must not get there.
type layout struct{ directory.Layout }

func (l layout) id() string      { return l.Path("id") }
func (l layout) ledgers() string { return l.Path("ledgers") }
func (l layout) probe() string   { return l.Path("probe") }

// socketIn is the directory of the agent's socket. The container has it as a bind
// mount, which a rename does not change.
func socketIn(d directory.Dir) string { return d.Path("socket") }

const socketName = "agent.sock"
