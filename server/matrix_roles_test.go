package server

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server/admission"
	"github.com/sandgate/sandgate/server/authn"
)

// tenantKey is the metadata by which an operator names the tenant of a call.
const tenantKey = "sandgate-tenant"

// matrixOfTokens serves with a token for each entry, whose contexts it returns, and
// a sandbox "victim" of the tenant "blue".
func matrixOfTokens(t *testing.T, entries map[string]authn.Entry) (*Server, *grpc.ClientConn, map[string]context.Context, *matrixRecords, func(*testing.T)) {
	t.Helper()
	var file strings.Builder
	file.WriteString("tokens:\n")
	as := make(map[string]context.Context)
	for name, e := range entries {
		e.Name = strings.ReplaceAll(name, " ", "-")
		token, e, err := authn.NewToken(e)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&file, "- {name: %s, tenant: %s, sha256: %s, role: %q, id_prefix: %q", e.Name, e.Tenant, e.SHA256, e.Role, e.IDPrefix)
		if e.Templates != nil {
			fmt.Fprintf(&file, ", templates: [%s]", strings.Join(e.Templates, ", "))
		}
		file.WriteString("}\n")
		as[name] = metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+token)
	}
	path := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(path, []byte(file.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	addr, srv, records, unchanged := newMatrix(t, func(c *Config) { useTokens(t, c, path) })
	return srv, dialServer(t, addr, insecure.NewCredentials()), as, records, unchanged
}

func forbidden(t *testing.T, err error) bool {
	if err == nil {
		return false
	}
	_, r := reason(t, err)
	return r == "CALL_FORBIDDEN"
}

// ownCalls returns the RPCs that have an own row or stand for an unknown one.
func ownCalls(t *testing.T, srv *Server) []method {
	var own []method
	for _, m := range methods(t, srv) {
		if strings.HasPrefix(m.full, "/sandbox.v1.SandboxService/") && m.desc != nil {
			own = append(own, m)
		}
	}
	return own
}

// TestEveryRPCWithEveryRole calls every RPC with each role, in the own tenant and in another.
func TestEveryRPCWithEveryRole(t *testing.T) {
	srv, conn, as, records, unchanged := matrixOfTokens(t, map[string]authn.Entry{
		"reader":       {Tenant: "blue", Role: "reader"},
		"other reader": {Tenant: "red", Role: "reader"},
		"other user":   {Tenant: "red"},
		"operator":     {Tenant: "red", Role: "operator"},
	})
	other := metadata.Pairs(tenantKey, "blue")
	in := func(ctx context.Context, tenants ...string) context.Context {
		for _, tenant := range tenants {
			ctx = metadata.AppendToOutgoingContext(ctx, tenantKey, tenant)
		}
		return ctx
	}
	t.Run("reader", func(t *testing.T) {
		readerCalls(as["reader"], t, srv, conn, records)
		unchanged(t)
	})
	for _, name := range []string{"other reader", "other user"} {
		t.Run(name+" names a tenant", func(t *testing.T) {
			for _, m := range ownCalls(t, srv) {
				got, err := m.call(in(as[name], other.Get(tenantKey)...), conn)
				records.wantForbidden(t, m, got, err)
			}
			unchanged(t)
		})
	}
	t.Run("operator", func(t *testing.T) {
		for name, ctx := range map[string]context.Context{
			"two tenants": in(as["operator"], "blue", "green"), "no tenant": in(as["operator"], ""),
		} {
			for _, m := range ownCalls(t, srv) {
				got, err := m.call(ctx, conn)
				records.wantForbidden(t, m, name+got, err)
			}
		}
		for _, m := range ownCalls(t, srv) {
			if !admission.PermissionOf(m.full).AnyTenant {
				got, err := m.call(in(as["operator"], "blue"), conn)
				records.wantForbidden(t, m, got, err)
			}
		}
		unchanged(t)
		client := sandboxv1.NewSandboxServiceClient(conn)
		list, err := client.ListSandboxes(in(as["operator"], "blue"), &sandboxv1.ListSandboxesRequest{})
		if err != nil || len(list.GetSandboxes()) != 1 {
			t.Fatalf("list: %v %v", list, err)
		}
		if list, err = client.ListSandboxes(as["operator"], &sandboxv1.ListSandboxesRequest{}); err != nil || len(list.GetSandboxes()) != 0 {
			t.Fatalf("without a tenant it is its own: %v %v", list, err)
		}
	})
	t.Run("what they may", func(t *testing.T) {
		for _, m := range ownCalls(t, srv) {
			if p := admission.PermissionOf(m.full); p.Role == authn.RoleReader {
				if _, err := m.call(as["reader"], conn); forbidden(t, err) {
					t.Errorf("a reader may not: %v", err)
				}
			}
			if _, err := m.call(as["other user"], conn); forbidden(t, err) {
				t.Errorf("a user may not: %v", err)
			}
			if admission.PermissionOf(m.full).AnyTenant {
				if _, err := m.call(in(as["operator"], "blue"), conn); forbidden(t, err) {
					t.Errorf("an operator may not: %v", err)
				}
			}
		}
	})
	records.complete(t, srv)
}

// TestEveryRPCOutsideItsScopeIsRefused calls every RPC with a token of the victim's own tenant whose scope
// leaves the victim out.
func TestEveryRPCOutsideItsScopeIsRefused(t *testing.T) {
	srv, conn, as, records, unchanged := matrixOfTokens(t, map[string]authn.Entry{
		"prefix": {Tenant: "blue", IDPrefix: "bot-"}, "templates": {Tenant: "blue", Templates: []string{"small"}},
		"no template": {Tenant: "blue", Templates: []string{}}, "operator": {Tenant: "red", Role: "operator", IDPrefix: "bot-"},
	})
	client := sandboxv1.NewSandboxServiceClient(conn)
	for name, ctx := range map[string]context.Context{
		"prefix": as["prefix"], "operator": metadata.AppendToOutgoingContext(as["operator"], tenantKey, "blue"),
	} {
		t.Run(name, func(t *testing.T) {
			for _, m := range ownCalls(t, srv) {
				got, err := m.call(ctx, conn)
				if namesSandbox(m.desc) {
					records.wantForbidden(t, m, got, err)
				} else if strings.Contains(got, marker) || err != nil && !forbidden(t, err) {
					t.Errorf("%s: got %q %v", m.full, got, err)
				}
			}
			unchanged(t)
		})
	}
	t.Run("templates", func(t *testing.T) {
		for _, name := range []string{"templates", "no template"} {
			for _, template := range []string{"", "default"} {
				_, err := client.CreateSandbox(as[name], &sandboxv1.CreateSandboxRequest{Template: template})
				wantReason(t, err, "CALL_FORBIDDEN")
			}
			info, err := client.GetServerInfo(as[name], &sandboxv1.GetServerInfoRequest{})
			if err != nil || len(info.GetTemplates()) > 0 {
				t.Errorf("templates %v %v", info.GetTemplates(), err)
			}
		}
		unchanged(t)
	})
	records.complete(t, srv)
	t.Run("within", func(t *testing.T) {
		created, err := client.CreateSandbox(as["prefix"], &sandboxv1.CreateSandboxRequest{})
		if err != nil || !strings.HasPrefix(created.GetSandbox().GetSandboxId(), "bot-") {
			t.Fatalf("got %v %v", created, err)
		}
		list, err := client.ListSandboxes(as["prefix"], &sandboxv1.ListSandboxesRequest{})
		if err != nil || len(list.GetSandboxes()) != 1 {
			t.Fatalf("got %v %v", list, err)
		}
		if _, err := client.DeleteSandbox(as["prefix"], &sandboxv1.DeleteSandboxRequest{SandboxId: created.GetSandbox().GetSandboxId()}); err != nil {
			t.Fatal(err)
		}
	})
}

// Without authentication a tenant cannot be named, and is not ignored.
func TestTenantWithoutAuthentication(t *testing.T) {
	h := newHarness(t, nil)
	ctx := metadata.AppendToOutgoingContext(t.Context(), tenantKey, "blue")
	_, err := h.client.ListSandboxes(ctx, &sandboxv1.ListSandboxesRequest{})
	wantReason(t, err, "CALL_FORBIDDEN")
}
