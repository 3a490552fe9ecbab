package process

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/agent/fault"
	"github.com/sandgate/sandgate/agent/landlock"
	"github.com/sandgate/sandgate/agent/spawn"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// Capabilities that Hello reports if the kernel supports them.
const (
	// DomainCapability: commands cannot signal the agent, nor connect to its
	// abstract sockets.
	DomainCapability = "command-domain"
	// WritePrefixesCapability: write prefixes bind commands.
	WritePrefixesCapability = "write-prefixes"
)

// devices may be written by every command, even if write prefixes bind it. They
// store nothing.
var devices = []string{
	"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/console",
	"/dev/ptmx", "/dev/pts", "/proc",
}

// restricted is set if all commands are in a Landlock domain without the agent.
var restricted atomic.Bool

// RestrictCommands puts all commands of this process into one Landlock domain.
// They cannot signal or trace processes outside, such as the agent, cannot
// connect to their abstract sockets, and cannot write to the given directories,
// as far as Landlock can express that. It must be called at most once, before
// the first command starts. On an error, commands work unrestricted.
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

// Capabilities returns the capabilities that depend on the kernel.
func Capabilities() []string {
	var list []string
	if restricted.Load() {
		list = append(list, DomainCapability)
	}
	if landlock.Writes() {
		list = append(list, WritePrefixesCapability)
	}
	return list
}

// writeRules makes the ruleset that limits a command's writes to the prefixes of
// its policies. Without such prefixes it returns nil. unbound tells people which
// prefixes do not bind the command.
func (s *Service) writeRules(policies []*sandboxv1.AccessPolicy) (rules *os.File, unbound string, err error) {
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
	allow, deny, err := s.cfg.WritePrefixes(policies)
	if err != nil {
		return nil, "", err
	}
	fd, exact, err := landlock.Create(landlock.Ruleset{Allow: allow, Deny: deny, Devices: devices})
	switch {
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ENOMEM):
		return nil, "", exhausted(err)
	case err != nil:
		return nil, "", fault.Internal(err)
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
