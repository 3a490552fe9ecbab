package call

import (
	"cmp"
	"context"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server/audit"
	"github.com/sandgate/sandgate/server/names"
	"github.com/sandgate/sandgate/server/policy"
)

// Begin writes the start records of a call, after authentication and decoding. Only
// its first call has an effect. It rejects a request beyond the caller's scope.
// An upload begins with its first header.
func (c *Call) Begin(ctx context.Context, w *audit.Recorder, req any) error {
	if c.Begun || !IsService(c.Method) {
		return nil
	}
	// The server chooses missing ids here, so that both records have them. With
	// an exec id it can find a command again after its connection breaks.
	switch m := req.(type) {
	case *sandboxv1.CreateSandboxRequest:
		if m.GetSandboxId() == "" {
			m.SandboxId = names.NewID(cmp.Or(c.Principal.Scope.IDPrefix, "sb-"))
		}
	case *sandboxv1.ExecuteRequest:
		if m.GetExecId() == "" {
			m.ExecId = names.NewID("x-")
		}
	}
	c.Audit.Describe(req, w.CommandText)
	c.Objects.Describe(req)
	c.Audit.SetCaller(c.Principal)
	if err := policy.InScope(c.Principal.Scope, req); err != nil {
		return err
	}
	c.Begun = true
	r := c.Audit
	r.Phase = audit.Started
	return w.Require(w.RecordAll(ctx, r, &c.Objects))
}

// BeginFile writes the start record of a further file.
func (c *Call) BeginFile(ctx context.Context, w *audit.Recorder, path string) error {
	r := c.Audit
	r.Phase, r.Path, r.Object = audit.Started, audit.Text(path, audit.MaxText), c.Objects.AddFile(path)
	return w.Require(w.Record(ctx, r))
}
