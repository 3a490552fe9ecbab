package admission

import (
	"context"
	"strings"

	"google.golang.org/grpc/metadata"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server/authn"
	"github.com/sandgate/sandgate/server/fault"
)

// tenantKey is the metadata by which an operator names the tenant of a call.
const tenantKey = "sandgate-tenant"

// Permission is who may make a call.
type Permission struct {
	// Role is the smallest role that may.
	Role authn.Role
	// AnyTenant is true if an operator may make it in another tenant. Such a call
	// shows no content and starts nothing.
	AnyTenant bool
}

// permissions is the only table of who may call what. A call without a row needs
// RoleUser.
var permissions = map[string]Permission{
	sandboxv1.SandboxService_GetServerInfo_FullMethodName:    {Role: authn.RoleReader, AnyTenant: true},
	sandboxv1.SandboxService_CreateSandbox_FullMethodName:    {Role: authn.RoleUser},
	sandboxv1.SandboxService_GetSandbox_FullMethodName:       {Role: authn.RoleReader, AnyTenant: true},
	sandboxv1.SandboxService_ListSandboxes_FullMethodName:    {Role: authn.RoleReader, AnyTenant: true},
	sandboxv1.SandboxService_WatchSandboxes_FullMethodName:   {Role: authn.RoleReader, AnyTenant: true},
	sandboxv1.SandboxService_UpdateSandbox_FullMethodName:    {Role: authn.RoleUser},
	sandboxv1.SandboxService_DeleteSandbox_FullMethodName:    {Role: authn.RoleUser, AnyTenant: true},
	sandboxv1.SandboxService_CleanupSandboxes_FullMethodName: {Role: authn.RoleUser, AnyTenant: true},
	sandboxv1.SandboxService_SuspendSandbox_FullMethodName:   {Role: authn.RoleUser, AnyTenant: true},
	sandboxv1.SandboxService_ResumeSandbox_FullMethodName:    {Role: authn.RoleUser, AnyTenant: true},
	sandboxv1.SandboxService_GetPoolStatus_FullMethodName:    {Role: authn.RoleReader, AnyTenant: true},
	sandboxv1.SandboxService_Execute_FullMethodName:          {Role: authn.RoleUser},
	sandboxv1.SandboxService_Attach_FullMethodName:           {Role: authn.RoleReader},
	sandboxv1.SandboxService_WriteStdin_FullMethodName:       {Role: authn.RoleUser},
	sandboxv1.SandboxService_SignalProcess_FullMethodName:    {Role: authn.RoleUser, AnyTenant: true},
	sandboxv1.SandboxService_ResizeTerminal_FullMethodName:   {Role: authn.RoleUser},
	sandboxv1.SandboxService_ListProcesses_FullMethodName:    {Role: authn.RoleReader, AnyTenant: true},
	sandboxv1.SandboxService_Forward_FullMethodName:          {Role: authn.RoleUser},
	sandboxv1.SandboxService_CreateSandboxUrl_FullMethodName: {Role: authn.RoleUser},
	sandboxv1.SandboxService_Upload_FullMethodName:           {Role: authn.RoleUser},
	sandboxv1.SandboxService_GetUpload_FullMethodName:        {Role: authn.RoleReader},
	sandboxv1.SandboxService_Download_FullMethodName:         {Role: authn.RoleReader},
	sandboxv1.SandboxService_StatFile_FullMethodName:         {Role: authn.RoleReader},
	sandboxv1.SandboxService_ListDirectory_FullMethodName:    {Role: authn.RoleReader},
	sandboxv1.SandboxService_MakeDirectory_FullMethodName:    {Role: authn.RoleUser},
	sandboxv1.SandboxService_MoveFile_FullMethodName:         {Role: authn.RoleUser},
	sandboxv1.SandboxService_RemoveFile_FullMethodName:       {Role: authn.RoleUser},
	sandboxv1.SandboxService_ReadLines_FullMethodName:        {Role: authn.RoleReader},
	sandboxv1.SandboxService_WriteFile_FullMethodName:        {Role: authn.RoleUser},
	sandboxv1.SandboxService_EditFile_FullMethodName:         {Role: authn.RoleUser},
	sandboxv1.SandboxService_SearchFiles_FullMethodName:      {Role: authn.RoleReader},
	sandboxv1.SandboxService_GlobFiles_FullMethodName:        {Role: authn.RoleReader},
}

// HasPermission reports whether a method has a row of its own.
func HasPermission(method string) bool {
	_, ok := permissions[method]
	return ok
}

// PermissionOf returns who may call a method. Those of other services, such as
// reflection, need no more than credentials.
func PermissionOf(method string) Permission {
	if p, ok := permissions[method]; ok {
		return p
	}
	if strings.HasPrefix(method, "/"+sandboxv1.SandboxService_ServiceDesc.ServiceName+"/") {
		return Permission{Role: authn.RoleUser}
	}
	return Permission{Role: authn.RoleReader}
}

// authorize returns the principal, in the tenant that the call is for. The error is
// a CALL_FORBIDDEN if the principal's role does not include the call.
func authorize(ctx context.Context, method string, p authn.Principal) (authn.Principal, error) {
	need := PermissionOf(method)
	if p.Role < need.Role {
		return p, fault.New(sandboxv1.ErrorReason_ERROR_REASON_CALL_FORBIDDEN,
			"this call needs the role %s, and these credentials have the role %s; ask the server's operator", need.Role, p.Role).
			With("role", need.Role.String())
	}
	tenants := metadata.ValueFromIncomingContext(ctx, tenantKey)
	switch {
	case len(tenants) == 0, len(tenants) == 1 && tenants[0] == p.Tenant:
		return p, nil
	case p.Role < authn.RoleOperator:
		return p, fault.New(sandboxv1.ErrorReason_ERROR_REASON_CALL_FORBIDDEN,
			"only the role operator may call in another tenant (%s)", tenantKey).With("role", authn.RoleOperator.String())
	case !need.AnyTenant, len(tenants) > 1, tenants[0] == "":
		return p, fault.New(sandboxv1.ErrorReason_ERROR_REASON_CALL_FORBIDDEN,
			"in another tenant an operator may list, inspect, suspend, resume and delete sandboxes and signal their commands, in one tenant with each call").
			With("field", tenantKey)
	}
	p.Tenant = tenants[0]
	return p, nil
}
