package admission

import (
	"testing"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// Every RPC has a row, and no row is of an RPC that is gone.
func TestEveryCallHasAPermission(t *testing.T) {
	known := make(map[string]bool)
	for _, m := range sandboxv1.SandboxService_ServiceDesc.Methods {
		known["/sandbox.v1.SandboxService/"+m.MethodName] = true
	}
	for _, m := range sandboxv1.SandboxService_ServiceDesc.Streams {
		known["/sandbox.v1.SandboxService/"+m.StreamName] = true
	}
	for full := range known {
		if _, ok := permissions[full]; !ok {
			t.Errorf("%s has no row in permissions: state the smallest role, and whether an operator may call it in another tenant", full)
		}
	}
	for full := range permissions {
		if !known[full] {
			t.Errorf("%s is not an RPC", full)
		}
	}
}
