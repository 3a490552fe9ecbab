package server

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net"
	"strconv"
	"strings"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server/authn"
	"github.com/sandgate/sandgate/server/wire"
)

// Bounds of texts that callers choose. The command's own is opt-in.
const (
	maxAuditText    = 1 << 10
	maxAuditCommand = 8 << 10
)

// auditText truncates a caller's text.
func auditText(s string, limit int) string {
	const ellipsis = "…"
	if len(s) > limit {
		s = s[:limit-len(ellipsis)] + ellipsis
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

// setCaller records the caller, which is empty before authentication.
func (r *AuditRecord) setCaller(p authn.Principal) {
	r.Principal, r.Tenant = p.Name, p.Tenant
	if p.Name != "" {
		r.Issuer, r.Role = p.Issuer, p.Role.String()
	}
}

// describe records what a request refers to. The request need not be valid.
func (r *AuditRecord) describe(req any, commandText bool) {
	if m, ok := req.(interface{ GetSandboxId() string }); ok {
		r.SandboxID = auditText(m.GetSandboxId(), maxAuditText)
	}
	if m, ok := req.(interface{ GetExecId() string }); ok {
		r.ExecID = auditText(m.GetExecId(), maxAuditText)
	}
	if m, ok := req.(interface{ GetPath() string }); ok {
		r.Path = auditText(m.GetPath(), maxAuditText)
	}
	switch m := req.(type) {
	case *sandboxv1.CreateSandboxRequest:
		r.Template = auditText(m.GetTemplate(), maxAuditText)
		r.describeSpec(m.GetSpec())
	case *sandboxv1.MoveFileRequest:
		r.Path = auditText(m.GetSource(), maxAuditText)
		r.Destination = auditText(m.GetDestination(), maxAuditText)
	case *sandboxv1.ExecuteRequest:
		r.describeCommand(m, commandText)
	case *sandboxv1.ForwardStart:
		host := m.GetHost()
		if host == "" {
			host = "localhost"
		}
		r.Address = auditText(net.JoinHostPort(host, strconv.Itoa(int(m.GetPort()))), maxAuditText)
	case *sandboxv1.DownloadRequest:
		if items := m.GetItems(); len(items) == 1 {
			r.Path = auditText(items[0].GetPath(), maxAuditText)
		}
	}
}

func (r *AuditRecord) describeSpec(spec *sandboxv1.SandboxSpec) {
	r.Image = auditText(spec.GetImage(), maxAuditText)
	if m := spec.GetNetwork().GetMode(); m != sandboxv1.NetworkMode_NETWORK_MODE_UNSPECIFIED {
		r.Network = strings.TrimPrefix(m.String(), "NETWORK_MODE_")
	}
	r.Resources = wire.ResourcesFrom(spec.GetResources())
}

func (r *AuditRecord) describeCommand(req *sandboxv1.ExecuteRequest, text bool) {
	h := sha256.New()
	switch c := req.GetCommand().(type) {
	case *sandboxv1.ExecuteRequest_Shell:
		r.Program = auditText(shellPath(req), maxAuditText)
		h.Write([]byte(c.Shell))
		if text {
			r.CommandText = auditText(c.Shell, maxAuditCommand)
		}
	case *sandboxv1.ExecuteRequest_Argv:
		args := c.Argv.GetArgs()
		if len(args) > 0 {
			r.Program = auditText(args[0], maxAuditText)
		}
		for _, a := range args {
			h.Write([]byte(a))
			h.Write([]byte{0})
		}
		if text {
			// Strings always encode.
			list, _ := json.Marshal(args)
			r.CommandText = auditText(string(list), maxAuditCommand)
		}
	}
	r.CommandHash = hex.EncodeToString(h.Sum(nil))
}

func shellPath(req *sandboxv1.ExecuteRequest) string {
	if p := req.GetShellPath(); p != "" {
		return p
	}
	return "/bin/sh"
}
