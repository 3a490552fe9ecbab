package server

import (
	"context"
	"slices"
	"strings"

	"google.golang.org/grpc/metadata"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server/authn"
	"github.com/sandgate/sandgate/server/fault"
	"github.com/sandgate/sandgate/server/policy"
)

// tenantKey is the metadata by which an operator names the tenant of a call.
const tenantKey = "sandgate-tenant"

// permission is who may make a call.
type permission struct {
	// role is the smallest role that may.
	role authn.Role
	// anyTenant is true if an operator may make it in another tenant. Such a call
	// shows no content and starts nothing.
	anyTenant bool
}

// permissions is the only table of who may call what. A call without a row needs
// RoleUser.
var permissions = map[string]permission{
	sandboxv1.SandboxService_GetServerInfo_FullMethodName:    {role: authn.RoleReader, anyTenant: true},
	sandboxv1.SandboxService_CreateSandbox_FullMethodName:    {role: authn.RoleUser},
	sandboxv1.SandboxService_GetSandbox_FullMethodName:       {role: authn.RoleReader, anyTenant: true},
	sandboxv1.SandboxService_ListSandboxes_FullMethodName:    {role: authn.RoleReader, anyTenant: true},
	sandboxv1.SandboxService_UpdateSandbox_FullMethodName:    {role: authn.RoleUser},
	sandboxv1.SandboxService_DeleteSandbox_FullMethodName:    {role: authn.RoleUser, anyTenant: true},
	sandboxv1.SandboxService_CleanupSandboxes_FullMethodName: {role: authn.RoleUser, anyTenant: true},
	sandboxv1.SandboxService_SuspendSandbox_FullMethodName:   {role: authn.RoleUser, anyTenant: true},
	sandboxv1.SandboxService_ResumeSandbox_FullMethodName:    {role: authn.RoleUser, anyTenant: true},
	sandboxv1.SandboxService_GetPoolStatus_FullMethodName:    {role: authn.RoleReader, anyTenant: true},
	sandboxv1.SandboxService_Execute_FullMethodName:          {role: authn.RoleUser},
	sandboxv1.SandboxService_Attach_FullMethodName:           {role: authn.RoleReader},
	sandboxv1.SandboxService_WriteStdin_FullMethodName:       {role: authn.RoleUser},
	sandboxv1.SandboxService_SignalProcess_FullMethodName:    {role: authn.RoleUser, anyTenant: true},
	sandboxv1.SandboxService_ResizeTerminal_FullMethodName:   {role: authn.RoleUser},
	sandboxv1.SandboxService_ListProcesses_FullMethodName:    {role: authn.RoleReader, anyTenant: true},
	sandboxv1.SandboxService_Forward_FullMethodName:          {role: authn.RoleUser},
	sandboxv1.SandboxService_Upload_FullMethodName:           {role: authn.RoleUser},
	sandboxv1.SandboxService_GetUpload_FullMethodName:        {role: authn.RoleReader},
	sandboxv1.SandboxService_Download_FullMethodName:         {role: authn.RoleReader},
	sandboxv1.SandboxService_StatFile_FullMethodName:         {role: authn.RoleReader},
	sandboxv1.SandboxService_ListDirectory_FullMethodName:    {role: authn.RoleReader},
	sandboxv1.SandboxService_MakeDirectory_FullMethodName:    {role: authn.RoleUser},
	sandboxv1.SandboxService_MoveFile_FullMethodName:         {role: authn.RoleUser},
	sandboxv1.SandboxService_RemoveFile_FullMethodName:       {role: authn.RoleUser},
	sandboxv1.SandboxService_ReadLines_FullMethodName:        {role: authn.RoleReader},
	sandboxv1.SandboxService_WriteFile_FullMethodName:        {role: authn.RoleUser},
	sandboxv1.SandboxService_EditFile_FullMethodName:         {role: authn.RoleUser},
	sandboxv1.SandboxService_SearchFiles_FullMethodName:      {role: authn.RoleReader},
	sandboxv1.SandboxService_GlobFiles_FullMethodName:        {role: authn.RoleReader},
}

// permissionOf returns who may call a method. Those of other services, such as
// reflection, need no more than credentials.
func permissionOf(method string) permission {
	if p, ok := permissions[method]; ok {
		return p
	}
	if strings.HasPrefix(method, "/"+sandboxv1.SandboxService_ServiceDesc.ServiceName+"/") {
		return permission{role: authn.RoleUser}
	}
	return permission{role: authn.RoleReader}
}

// authorize returns the principal, in the tenant that the call is for. The error is
// a CALL_FORBIDDEN if the principal's role does not include the call.
func authorize(ctx context.Context, method string, p authn.Principal) (authn.Principal, error) {
	need := permissionOf(method)
	if p.Role < need.role {
		return p, fault.New(sandboxv1.ErrorReason_ERROR_REASON_CALL_FORBIDDEN,
			"this call needs the role %s, and these credentials have the role %s; ask the server's operator", need.role, p.Role).
			With("role", need.role.String())
	}
	tenants := metadata.ValueFromIncomingContext(ctx, tenantKey)
	switch {
	case len(tenants) == 0, len(tenants) == 1 && tenants[0] == p.Tenant:
		return p, nil
	case p.Role < authn.RoleOperator:
		return p, fault.New(sandboxv1.ErrorReason_ERROR_REASON_CALL_FORBIDDEN,
			"only the role operator may call in another tenant (%s)", tenantKey).With("role", authn.RoleOperator.String())
	case !need.anyTenant, len(tenants) > 1, tenants[0] == "":
		return p, fault.New(sandboxv1.ErrorReason_ERROR_REASON_CALL_FORBIDDEN,
			"in another tenant an operator may list, inspect, suspend, resume and delete sandboxes and signal their commands, in one tenant with each call").
			With("field", tenantKey)
	}
	p.Tenant = tenants[0]
	return p, nil
}

// inScope returns a CALL_FORBIDDEN unless a request stays within the scope of its
// caller. It decides by the request alone, so it does not reveal what exists.
func inScope(scope authn.Scope, req any) error {
	create, isCreate := req.(*sandboxv1.CreateSandboxRequest)
	if isCreate && !templateInScope(scope, create.GetTemplate()) {
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

func templateInScope(scope authn.Scope, template string) bool {
	if template == "" {
		template = policy.DefaultTemplate().Name
	}
	return scope.Templates == nil || slices.Contains(scope.Templates, template)
}
