package policy

import (
	"slices"
	"strings"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server/authn"
	"github.com/sandgate/sandgate/server/fault"
)

// InScope returns a CALL_FORBIDDEN unless a request stays within the scope of its
// caller. It decides by the request alone, so it does not reveal what exists.
func InScope(scope authn.Scope, req any) error {
	create, isCreate := req.(*sandboxv1.CreateSandboxRequest)
	if isCreate && !TemplateInScope(scope, create.GetTemplate()) {
		return fault.New(sandboxv1.ErrorReason_ERROR_REASON_CALL_FORBIDDEN,
			"these credentials may not use this template; GetServerInfo lists those that they may").With("field", "template")
	}
	named, ok := req.(interface{ GetSandboxId() string })
	if ok && !strings.HasPrefix(named.GetSandboxId(), scope.IDPrefix) {
		return fault.New(sandboxv1.ErrorReason_ERROR_REASON_CALL_FORBIDDEN,
			"these credentials are for sandboxes whose id begins with %q", scope.IDPrefix).With("field", "sandbox_id")
	}
	return nil
}

// TemplateInScope reports whether a caller may use a template. Empty is the default one.
func TemplateInScope(scope authn.Scope, template string) bool {
	if template == "" {
		template = DefaultTemplate().Name
	}
	return scope.Templates == nil || slices.Contains(scope.Templates, template)
}
