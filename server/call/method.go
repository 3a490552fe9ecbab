package call

import (
	"strings"

	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// UnknownOperation is the operation of all methods that the server does not have.
const UnknownOperation = "unknown"

// IsService reports whether a method is one of SandboxService. Others, such as health
// checks and reflection, leave no audit records.
func IsService(method string) bool {
	return strings.HasPrefix(method, "/"+sandboxv1.SandboxService_ServiceDesc.ServiceName+"/")
}

// IsHealth reports whether a method is a health check, which needs no credentials.
func IsHealth(method string) bool {
	return strings.HasPrefix(method, "/"+healthv1.Health_ServiceDesc.ServiceName+"/")
}
