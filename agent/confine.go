package agent

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/agent/landlock"
	"github.com/sandgate/sandgate/agent/spawn"
	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
)

// Capabilities that Hello reports where the kernel has what they need.
const (
	// DomainCapability: commands cannot signal the agent, nor connect to its
	// abstract sockets.
	DomainCapability = "command-domain"
	// WritePrefixesCapability: write prefixes bind commands.
	WritePrefixesCapability = "write-prefixes"
)

// devices may be written by every command, also where write prefixes bind it.
// What is written to them is kept nowhere.
var devices = []string{
	"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/console",
	"/dev/ptmx", "/dev/pts", "/proc",
}

// restricted says that all commands are in a domain that keeps them from the
// agent.
var restricted atomic.Bool

// RestrictCommands puts all commands of this process into one Landlock domain.
// From there they cannot signal, trace or connect by an abstract socket to what
// is outside, such as the agent, and cannot write to the given directories,
// as far as Landlock can express that. It must be called at most once, before
// the first agent is made. An error says why commands are not restricted; they
// work all the same.
func RestrictCommands(protect ...string) error {
	rules := landlock.Ruleset{Scoped: true}
	if rules.Deny = landlock.Enforceable(protect); len(rules.Deny) > 0 {
		rules.Allow = []string{"/"}
	}
	fd, _, err := landlock.Create(rules)
	if err != nil {
		return fmt.Errorf("restrict commands: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	if err := spawn.Restrict(fd); err != nil {
		return fmt.Errorf("restrict commands: %w", err)
	}
	restricted.Store(landlock.Scopes())
	return nil
}

// writeRules makes the ruleset that holds a command's writes to the prefixes of
// its policies. It returns nil without such prefixes, and a text for people where
// they do not bind the command, or not all of them.
func (a *Agent) writeRules(env *agentv1.ExecuteRequest) (rules *os.File, unbound string, err error) {
	policies := accessPolicies(env)
	limited := false
	for _, p := range policies {
		limited = limited || len(p.GetWriteAllowPrefixes())+len(p.GetWriteDenyPrefixes()) > 0
	}
	if !limited {
		return nil, "", nil
	}
	if !landlock.Writes() {
		return nil, "write prefixes did not bind the command: the sandbox's kernel has no Landlock", nil
	}
	allow, deny, err := a.WritePrefixes(&agentv1.Confinement{Policies: policies})
	if err != nil {
		return nil, "", err
	}
	fd, exact, err := landlock.Create(landlock.Ruleset{Allow: allow, Deny: deny, Devices: devices})
	switch {
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ENOMEM):
		return nil, "", exhausted(err)
	case err != nil:
		return nil, "", internal(err)
	}
	var gaps []string
	if !exact {
		gaps = append(gaps, "write_deny_prefixes did not bind the command where their parent directory may be written or cannot be listed")
	}
	if !landlock.Truncates() {
		gaps = append(gaps, "the command could truncate files outside of its write prefixes: the sandbox's kernel is older than Linux 6.2")
	}
	return os.NewFile(uintptr(fd), "ruleset"), strings.Join(gaps, "; "), nil
}
