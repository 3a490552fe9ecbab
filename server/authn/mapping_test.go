package authn

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestMapping(t *testing.T) {
	reader := RoleReader
	groups := map[string]Role{"devs": RoleUser, "ops": RoleOperator, "guests": RoleReader}
	for name, c := range map[string]struct {
		claims string
		m      Mapping
		want   Principal
		err    bool
	}{
		"defaults":       {`{"sub": "ann"}`, Mapping{Tenant: "blue"}, Principal{Name: "ann", Tenant: "blue"}, false},
		"claims":         {`{"email": "a@b.c", "org": "blue"}`, Mapping{Principal: "email", TenantClaim: "org", TenantPrefix: "x-"}, Principal{Name: "a@b.c", Tenant: "x-blue"}, false},
		"list of one":    {`{"sub": "ann", "org": ["blue"]}`, Mapping{TenantClaim: "org"}, Principal{Name: "ann", Tenant: "blue"}, false},
		"list of two":    {`{"sub": "ann", "org": ["blue", "red"]}`, Mapping{TenantClaim: "org"}, Principal{}, true},
		"no tenant":      {`{"sub": "ann"}`, Mapping{TenantClaim: "org"}, Principal{}, true},
		"empty tenant":   {`{"sub": "ann", "org": ""}`, Mapping{TenantClaim: "org", TenantPrefix: "x"}, Principal{}, true},
		"an object":      {`{"sub": "ann", "org": {"a": "b"}}`, Mapping{TenantClaim: "org"}, Principal{}, true},
		"a number":       {`{"sub": "ann", "org": 12345678901}`, Mapping{TenantClaim: "org"}, Principal{Name: "ann", Tenant: "12345678901"}, false},
		"largest number": {`{"sub": "ann", "org": 9007199254740991}`, Mapping{TenantClaim: "org"}, Principal{Name: "ann", Tenant: "9007199254740991"}, false},
		"rounded number": {`{"sub": "ann", "org": 9007199254740993}`, Mapping{TenantClaim: "org"}, Principal{}, true},
		"path":           {`{"sub": "ann", "a": {"b": {"c": "blue"}}}`, Mapping{TenantClaim: "a.b.c"}, Principal{Name: "ann", Tenant: "blue"}, false},
		"dots in a name": {`{"sub": "ann", "https://x.y/org": "blue"}`, Mapping{TenantClaim: "https://x.y/org"}, Principal{Name: "ann", Tenant: "blue"}, false},
		"newline":        {`{"sub": "ann\nadmin"}`, Mapping{Tenant: "blue"}, Principal{}, true},
		"direction":      {`{"sub": "\u202eann"}`, Mapping{Tenant: "blue"}, Principal{}, true},
		"half a pair":    {`{"sub": "ann", "org": "\ud800"}`, Mapping{TenantClaim: "org"}, Principal{}, true},
		"long":           {`{"sub": "` + strings.Repeat("x", maxName+1) + `"}`, Mapping{Tenant: "blue"}, Principal{}, true},
		"unverified":     {`{"email": "a@b.c", "email_verified": false}`, Mapping{Principal: "email", Tenant: "blue"}, Principal{}, true},
		"verified":       {`{"email": "a@b.c", "email_verified": true}`, Mapping{Principal: "email", Tenant: "blue"}, Principal{Name: "a@b.c", Tenant: "blue"}, false},
		"greatest role": {`{"sub": "ann", "groups": ["guests", "ops", "x"]}`, Mapping{Tenant: "blue", RoleClaim: "groups", Roles: groups},
			Principal{Name: "ann", Tenant: "blue", Role: RoleOperator}, false},
		"smallest role": {`{"sub": "ann", "groups": ["guests"]}`, Mapping{Tenant: "blue", RoleClaim: "groups", Roles: groups},
			Principal{Name: "ann", Tenant: "blue", Role: RoleReader}, false},
		"no role":     {`{"sub": "ann", "groups": ["x"]}`, Mapping{Tenant: "blue", RoleClaim: "groups", Roles: groups}, Principal{}, true},
		"role's part": {`{"sub": "ann", "groups": ["op"]}`, Mapping{Tenant: "blue", RoleClaim: "groups", Roles: groups}, Principal{}, true},
		"other role": {`{"sub": "ann", "groups": ["x"]}`, Mapping{Tenant: "blue", RoleClaim: "groups", Roles: groups, Role: &reader},
			Principal{Name: "ann", Tenant: "blue", Role: RoleReader}, false},
		"required":      {`{"sub": "ann", "x": "y", "n": 7, "t": true}`, Mapping{Tenant: "blue", Require: map[string]string{"x": "y", "n": "7", "t": "true"}}, Principal{Name: "ann", Tenant: "blue"}, false},
		"not required":  {`{"sub": "ann", "x": "z"}`, Mapping{Tenant: "blue", Require: map[string]string{"x": "y"}}, Principal{}, true},
		"none required": {`{"sub": "ann"}`, Mapping{Tenant: "blue", Require: map[string]string{"x": ""}}, Principal{}, true},
	} {
		t.Run(name, func(t *testing.T) {
			var claims map[string]any
			if err := json.Unmarshal([]byte(c.claims), &claims); err != nil {
				t.Fatal(err)
			}
			p, err := c.m.principal(claims)
			if (err != nil) != c.err || c.err && !errors.Is(err, ErrForbidden) || !p.Equal(c.want) {
				t.Fatalf("got %+v %v", p, err)
			}
		})
	}
}

// No claims are a principal without a name and a tenant that are fit for records,
// and none choose a tenant without the prefix.
func FuzzMapping(f *testing.F) {
	f.Add([]byte(`{"sub": "ann", "org": ["blue"], "groups": ["ops", 1, null, {}]}`), "org", "groups")
	f.Add([]byte(`{"": {"": "x"}, "sub": true, "a": {"b": 1e400}}`), ".", "a.b")
	f.Add([]byte(`{"sub": "\u0000", "org": "\ud800"}`), "org", "org.org")
	f.Fuzz(func(t *testing.T, raw []byte, tenant, role string) {
		var claims map[string]any
		if json.Unmarshal(raw, &claims) != nil {
			return
		}
		m := Mapping{TenantClaim: tenant, TenantPrefix: "x-", RoleClaim: role, Roles: map[string]Role{"ops": RoleOperator}}
		if m.check() != nil {
			return
		}
		p, err := m.principal(claims)
		if err != nil {
			if !errors.Is(err, ErrForbidden) || !p.Equal(Principal{}) {
				t.Fatalf("%+v beside %v", p, err)
			}
			return
		}
		rest, ok := strings.CutPrefix(p.Tenant, "x-")
		if !ok || rest == "" || p.Name == "" || !utf8.ValidString(p.Name+p.Tenant) || strings.ContainsAny(p.Name+p.Tenant, "\x00\n\r") || len(p.Name) > maxName {
			t.Fatalf("got %+v", p)
		}
		if p.Role != RoleOperator {
			t.Fatalf("the role %s without a configured value", p.Role)
		}
	})
}

// No bytes are a token that counts without a signature.
func FuzzSignedToken(f *testing.F) {
	i := newTestIssuer(f)
	o := i.open(nil)
	valid := i.token(nil)
	want, err := ask(f.Context(), o, valid)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(valid)
	f.Add(strings.Replace(valid, ".", "..", 1))
	f.Add("eyJhbGciOiJub25lIn0.e30.")
	f.Fuzz(func(t *testing.T, token string) {
		p, err := o.AuthenticateToken(token)
		if err != nil && token == valid {
			t.Fatal(err)
		}
		// The last digit of a signature has bits that stand for nothing.
		if err == nil && !p.Equal(want) {
			t.Fatalf("%+v for %q", p, token)
		}
	})
}
