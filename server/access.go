package server

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"

	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server/fault"
)

// checkPolicy finds what is malformed in an access policy.
func checkPolicy(field string, p *sandboxv1.AccessPolicy) violations {
	var v violations
	if p == nil {
		return nil
	}
	v.optionalPath(field+".root_dir", p.GetRootDir())
	if p.GetVirtual() && p.GetRootDir() == "" {
		v.add(field+".virtual", "needs root_dir")
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
			v.path(fmt.Sprintf("%s.%s[%d]", field, list.name, i), prefix)
		}
	}
	for i, text := range p.GetDenyCommands() {
		if text == "" {
			v.add(fmt.Sprintf("%s.deny_commands[%d]", field, i), "must not be empty")
		}
	}
	return v
}

// encodeAccess makes Spec.Access: the policies of template and sandbox, in this
// order, either of which may be empty. They are kept with the sandbox, so a
// template that is changed or removed later does not loosen what runs.
func encodeAccess(template, own *sandboxv1.AccessPolicy) ([]byte, error) {
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

// decodeAccess is the reverse of encodeAccess.
func decodeAccess(raw []byte) ([]*sandboxv1.AccessPolicy, error) {
	if len(raw) == 0 {
		return nil, nil
	}
	var c agentv1.Confinement
	if err := proto.Unmarshal(raw, &c); err != nil {
		return nil, fmt.Errorf("the stored access policy cannot be read: %w", err)
	}
	return c.GetPolicies(), nil
}

// confine puts the policies of server, template, sandbox and call together. A
// path must pass all of them.
func (s *Server) confine(t *tunnel, own *sandboxv1.AccessPolicy) (*agentv1.Confinement, error) {
	if v := checkPolicy("access", own); len(v) > 0 {
		return nil, v.err()
	}
	if s.cfg.Access == nil && own == nil && len(t.policies) == 0 {
		return nil, nil
	}
	c := &agentv1.Confinement{}
	virtual := false
	for _, p := range append(append([]*sandboxv1.AccessPolicy{s.cfg.Access}, t.policies...), own) {
		if p == nil || proto.Size(p) == 0 {
			continue
		}
		if virtual && p.GetRootDir() != "" {
			var v violations
			v.add("access.root_dir", "cannot be narrowed further: the sandbox's policy has a virtual root")
			return nil, v.err()
		}
		virtual = virtual || p.GetVirtual()
		c.Policies = append(c.Policies, p)
	}
	return c, nil
}

// refuseCommand applies deny_commands: a guardrail against accidents, since a
// shell has a thousand ways to write the same thing.
func refuseCommand(c *agentv1.Confinement, req *sandboxv1.ExecuteRequest) error {
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
