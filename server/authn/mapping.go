package authn

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxName bounds the names of principals and tenants that claims state, in bytes.
const maxName = 256

// Mapping turns the claims of an issuer's tokens into a principal. A claim is
// named as it is in the token, or by a path with dots, such as
// "realm_access.roles".
type Mapping struct {
	// Principal is the claim of the principal's name. Default: "sub".
	Principal string
	// Tenant is the tenant of all tokens. Empty: TenantClaim names a claim with one
	// text, and TenantPrefix is put before it.
	Tenant, TenantClaim, TenantPrefix string
	// Roles gives each value of RoleClaim, a text or a list of texts, a role. The
	// greatest one counts.
	RoleClaim string
	Roles     map[string]Role
	// Role is for tokens that Roles has no role for. Nil: they are rejected if
	// RoleClaim is set; otherwise they have RoleUser.
	Role *Role
	// Require lists claims with the text, number or boolean that they must have, or
	// contain if they are lists.
	Require map[string]string
}

// check returns an error for a mapping that can map nothing.
func (m Mapping) check() error {
	switch {
	case (m.Tenant == "") == (m.TenantClaim == ""):
		return errors.New("either tenant or tenant_claim must be given")
	case m.TenantPrefix != "" && m.TenantClaim == "":
		return errors.New("tenant_prefix needs tenant_claim")
	case (m.RoleClaim == "") != (len(m.Roles) == 0):
		return errors.New("role_claim and roles must be given together")
	}
	return nil
}

// principal returns the principal of verified claims. The error is an
// ErrForbidden, and names claims but none of their values.
func (m Mapping) principal(claims map[string]any) (Principal, error) {
	for name, want := range m.Require {
		if !slices.Contains(texts(claim(claims, name)), want) {
			return Principal{}, fmt.Errorf("%w: the claim %q does not have the required value", ErrForbidden, name)
		}
	}
	nameClaim := m.Principal
	if nameClaim == "" {
		nameClaim = "sub"
	}
	var p Principal
	var err error
	if p.Name, err = nameIn(claims, nameClaim); err != nil {
		return Principal{}, err
	}
	p.Tenant = m.Tenant
	if m.TenantClaim != "" {
		if p.Tenant, err = nameIn(claims, m.TenantClaim); err != nil {
			return Principal{}, err
		}
		p.Tenant = m.TenantPrefix + p.Tenant
	}
	if p.Role, err = m.role(claims); err != nil {
		return Principal{}, err
	}
	return p, nil
}

func (m Mapping) role(claims map[string]any) (Role, error) {
	best, found := RoleReader, false
	for _, value := range texts(claim(claims, m.RoleClaim)) {
		if role, ok := m.Roles[value]; ok {
			best, found = max(best, role), true
		}
	}
	switch {
	case found:
		return best, nil
	case m.Role != nil:
		return *m.Role, nil
	case m.RoleClaim == "":
		return RoleUser, nil
	default:
		return 0, fmt.Errorf("%w: the claim %q has no value with a role", ErrForbidden, m.RoleClaim)
	}
}

// nameIn returns the only text of a claim, if it is fit for records. An e-mail
// address that the issuer has not verified is not: whoever registers could choose
// that of another.
func nameIn(claims map[string]any, name string) (string, error) {
	values := texts(claim(claims, name))
	if len(values) != 1 || !fit(values[0]) {
		return "", fmt.Errorf("%w: the claim %q must be one text of 1 to %d printable bytes", ErrForbidden, name, maxName)
	}
	if verified, ok := claims["email_verified"]; ok && name == "email" && verified != true && verified != "true" {
		return "", fmt.Errorf("%w: the issuer has not verified the e-mail address", ErrForbidden)
	}
	return values[0], nil
}

// fit reports whether a text is fit for records. U+FFFD is not: the decoder puts it in
// place of several invalid characters, and several tenants would be one.
func fit(s string) bool {
	bad := func(r rune) bool { return !unicode.IsPrint(r) || r == unicode.ReplacementChar }
	return s != "" && len(s) <= maxName && utf8.ValidString(s) && strings.IndexFunc(s, bad) < 0
}

// claim returns the value of a claim: the one with this name, otherwise the one at
// this path. Nil: there is none.
func claim(claims map[string]any, name string) any {
	if v, ok := claims[name]; ok {
		return v
	}
	first, rest, more := strings.Cut(name, ".")
	inner, ok := claims[first].(map[string]any)
	if !more || !ok {
		return nil
	}
	return claim(inner, rest)
}

// texts returns a claim's scalar values as texts. It skips numbers that were not read
// exactly.
func texts(value any) []string {
	list, ok := value.([]any)
	if !ok {
		list = []any{value}
	}
	var all []string
	for _, one := range list {
		switch v := one.(type) {
		case string:
			all = append(all, v)
		case bool:
			all = append(all, strconv.FormatBool(v))
		case float64:
			// Larger ones are rounded: several numbers would be one tenant.
			if math.Abs(v) >= 1<<53 {
				continue
			}
			all = append(all, strconv.FormatFloat(v, 'f', -1, 64))
		}
	}
	return all
}
