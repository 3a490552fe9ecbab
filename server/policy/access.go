package policy

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/sandgate/sandgate/agent/protocol"
	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server/fault"
)

// CheckAccess returns what is malformed in an access policy.
func CheckAccess(field string, p *sandboxv1.AccessPolicy) Violations {
	var v Violations
	if p == nil {
		return nil
	}
	if proto.Size(p) > protocol.MaxPolicy {
		// Nothing in it is worth naming, and it travels with every call.
		v.Add(field, "must be at most %d bytes, encoded", protocol.MaxPolicy)
		return v
	}
	v.OptionalPath(field+".root_dir", p.GetRootDir())
	if p.GetVirtual() && p.GetRootDir() == "" {
		v.Add(field+".virtual", "needs root_dir")
	}
	for _, list := range []struct {
		name     string
		prefixes []string
	}{
		{"write_allow_prefixes", p.GetWriteAllowPrefixes()},
		{"write_deny_prefixes", p.GetWriteDenyPrefixes()},
		{"read_deny_prefixes", p.GetReadDenyPrefixes()},
	} {
		for i, prefix := range list.prefixes {
			v.Path(fmt.Sprintf("%s.%s[%d]", field, list.name, i), prefix)
		}
	}
	for i, text := range p.GetDenyCommands() {
		if text == "" {
			v.Add(fmt.Sprintf("%s.deny_commands[%d]", field, i), "must not be empty")
		}
	}
	return v
}

// EncodeAccess returns Spec.Access: the policies of template and sandbox, in this
// order, either of which may be empty. The provider stores them with the sandbox,
// so a later change of the template does not loosen a running sandbox.
func EncodeAccess(template, own *sandboxv1.AccessPolicy) ([]byte, error) {
	if template == nil && own == nil {
		return nil, nil
	}
	c := &agentv1.Confinement{Policies: []*sandboxv1.AccessPolicy{orEmpty(template), orEmpty(own)}}
	return proto.MarshalOptions{Deterministic: true}.Marshal(c)
}

func orEmpty(p *sandboxv1.AccessPolicy) *sandboxv1.AccessPolicy {
	if p == nil {
		return &sandboxv1.AccessPolicy{}
	}
	return p
}

// DecodeAccess is the reverse of EncodeAccess.
func DecodeAccess(raw []byte) ([]*sandboxv1.AccessPolicy, error) {
	if len(raw) == 0 {
		return nil, nil
	}
	var c agentv1.Confinement
	if err := proto.Unmarshal(raw, &c); err != nil {
		return nil, fmt.Errorf("the stored access policy cannot be read: %w", err)
	}
	return c.GetPolicies(), nil
}

// Confine combines the policies of server, sandbox and call. A path must pass all
// of them. own is the call's policy, or nil.
func (p *Policy) Confine(sandbox []*sandboxv1.AccessPolicy, own *sandboxv1.AccessPolicy) (*agentv1.Confinement, error) {
	if v := CheckAccess("access", own); len(v) > 0 {
		return nil, v.Err()
	}
	if p.cfg.Access == nil && own == nil && len(sandbox) == 0 {
		return nil, nil
	}
	c := &agentv1.Confinement{}
	virtual := false
	for _, one := range append(append([]*sandboxv1.AccessPolicy{p.cfg.Access}, sandbox...), own) {
		if one == nil || proto.Size(one) == 0 {
			continue
		}
		if virtual && one.GetRootDir() != "" {
			var v Violations
			v.Add("access.root_dir", "cannot be narrowed further: the sandbox's policy has a virtual root")
			return nil, v.Err()
		}
		virtual = virtual || one.GetVirtual()
		c.Policies = append(c.Policies, one)
	}
	return c, nil
}

// RefuseCommand applies deny_commands. It is a guardrail against accidents: a
// shell has many ways to write the same command.
func RefuseCommand(c *agentv1.Confinement, req *sandboxv1.ExecuteRequest) error {
	var command string
	for _, p := range c.GetPolicies() {
		for _, text := range p.GetDenyCommands() {
			if command == "" {
				command = commandText(req)
			}
			if strings.Contains(command, text) {
				return fault.New(sandboxv1.ErrorReason_ERROR_REASON_POLICY_DENIED,
					"the command contains %q, which a policy refuses", text).With("policy", "deny_commands")
			}
		}
	}
	return nil
}

func commandText(req *sandboxv1.ExecuteRequest) string {
	if argv := req.GetArgv(); argv != nil {
		return strings.Join(argv.GetArgs(), " ")
	}
	return req.GetShell()
}
