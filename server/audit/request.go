package audit

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
	MaxText    = 1 << 10
	maxCommand = 8 << 10
)

// Text truncates a caller's text.
func Text(s string, limit int) string {
	const ellipsis = "…"
	if len(s) > limit {
		s = s[:limit-len(ellipsis)] + ellipsis
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

// SetCaller records the caller, which is empty before authentication.
func (r *Record) SetCaller(p authn.Principal) {
	r.Principal, r.Tenant = p.Name, p.Tenant
	if p.Name != "" {
		r.Issuer, r.Role = p.Issuer, p.Role.String()
	}
}

// Describe records what a request refers to. The request need not be valid.
func (r *Record) Describe(req any, commandText bool) {
	if m, ok := req.(interface{ GetSandboxId() string }); ok {
		r.SandboxID = Text(m.GetSandboxId(), MaxText)
	}
	if m, ok := req.(interface{ GetExecId() string }); ok {
		r.ExecID = Text(m.GetExecId(), MaxText)
	}
	if m, ok := req.(interface{ GetPath() string }); ok {
		r.Path = Text(m.GetPath(), MaxText)
	}
	switch m := req.(type) {
	case *sandboxv1.CreateSandboxRequest:
		r.Template = Text(m.GetTemplate(), MaxText)
		r.DescribeSpec(m.GetSpec())
	case *sandboxv1.MoveFileRequest:
		r.Path = Text(m.GetSource(), MaxText)
		r.Destination = Text(m.GetDestination(), MaxText)
	case *sandboxv1.ExecuteRequest:
		r.describeCommand(m, commandText)
	case *sandboxv1.ForwardStart:
		host := m.GetHost()
		if host == "" {
			host = "localhost"
		}
		r.Address = Text(net.JoinHostPort(host, strconv.Itoa(int(m.GetPort()))), MaxText)
	case *sandboxv1.CreateSandboxUrlRequest:
		if port := m.GetPort(); port != 0 {
			r.Address = net.JoinHostPort("localhost", strconv.Itoa(int(port)))
		}
	case *sandboxv1.DownloadRequest:
		if items := m.GetItems(); len(items) == 1 {
			r.Path = Text(items[0].GetPath(), MaxText)
		}
	}
}

// DescribeSpec records what a sandbox is created from.
func (r *Record) DescribeSpec(spec *sandboxv1.SandboxSpec) {
	r.Image = Text(spec.GetImage(), MaxText)
	if m := spec.GetNetwork().GetMode(); m != sandboxv1.NetworkMode_NETWORK_MODE_UNSPECIFIED {
		r.Network = strings.TrimPrefix(m.String(), "NETWORK_MODE_")
	}
	r.Resources = wire.ResourcesFrom(spec.GetResources())
}

func (r *Record) describeCommand(req *sandboxv1.ExecuteRequest, text bool) {
	h := sha256.New()
	switch c := req.GetCommand().(type) {
	case *sandboxv1.ExecuteRequest_Shell:
		r.Program = Text(shellPath(req), MaxText)
		h.Write([]byte(c.Shell))
		if text {
			r.CommandText = Text(c.Shell, maxCommand)
		}
	case *sandboxv1.ExecuteRequest_Argv:
		args := c.Argv.GetArgs()
		if len(args) > 0 {
			r.Program = Text(args[0], MaxText)
		}
		for _, a := range args {
			h.Write([]byte(a))
			h.Write([]byte{0})
		}
		if text {
			// Strings always encode.
			list, _ := json.Marshal(args)
			r.CommandText = Text(string(list), maxCommand)
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
