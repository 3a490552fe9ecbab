package paths

import "fmt"

// Policy is the part of an access policy that concerns files.
type Policy struct {
	// Root is the directory that every path resolves beneath. Empty: none.
	Root string
	// Virtual makes paths relative to Root.
	Virtual bool
	// WriteAllow lists the prefixes that may be written. Empty: all.
	WriteAllow []string
	// WriteDeny lists prefixes that may not be written.
	WriteDeny []string
	// ReadDeny lists prefixes that may not be read.
	ReadDeny []string
}

// Access is the kind of access to a path.
type Access uint8

const (
	// Read is to read, list or search.
	Read Access = 1 << iota
	// Write is to create, change, move or remove.
	Write
)

// DeniedError is returned for a path that a policy forbids.
type DeniedError struct {
	// Policy is the rule that denied it, such as "write_deny_prefixes: /etc".
	Policy string
}

func (e *DeniedError) Error() string { return "denied by policy " + e.Policy }

// rule is one policy with resolved paths.
type rule struct {
	root       string // resolved; empty: none
	writeAllow []string
	writeDeny  []string
	readDeny   []string
}

func (r *rule) check(access Access, real string) error {
	if r.root != "" && !Beneath(real, r.root) {
		return ErrOutside
	}
	if access&Read != 0 {
		for _, p := range r.readDeny {
			if Beneath(real, p) {
				return &DeniedError{Policy: "read_deny_prefixes: " + p}
			}
		}
	}
	if access&Write != 0 {
		for _, p := range r.writeDeny {
			if Beneath(real, p) {
				return &DeniedError{Policy: "write_deny_prefixes: " + p}
			}
		}
		if len(r.writeAllow) > 0 && !anyBeneath(real, r.writeAllow) {
			return &DeniedError{Policy: fmt.Sprintf("write_allow_prefixes: %q", r.writeAllow)}
		}
	}
	return nil
}

// checkTree is check for a directory that is moved with its content.
func (r *rule) checkTree(real string) error {
	for _, p := range r.readDeny {
		if Beneath(p, real) {
			return &DeniedError{Policy: "read_deny_prefixes: " + p}
		}
	}
	for _, p := range r.writeDeny {
		if Beneath(p, real) {
			return &DeniedError{Policy: "write_deny_prefixes: " + p}
		}
	}
	return nil
}

// WritePrefixes returns the resolved paths beneath which all policies allow
// writes, and those beneath which one of them forbids writes. Roots do not count.
func (v *View) WritePrefixes() (allow, deny []string) {
	allow = []string{"/"}
	for _, r := range v.rules {
		if len(r.writeAllow) > 0 {
			allow = both(allow, r.writeAllow)
		}
		deny = append(deny, r.writeDeny...)
	}
	return allow, deny
}

// both returns the prefixes of paths that are beneath one of a and one of b.
func both(a, b []string) []string {
	list := []string{}
	for _, p := range a {
		for _, q := range b {
			switch {
			case Beneath(p, q):
				list = append(list, p)
			case Beneath(q, p):
				list = append(list, q)
			}
		}
	}
	return list
}

func anyBeneath(real string, prefixes []string) bool {
	for _, p := range prefixes {
		if Beneath(real, p) {
			return true
		}
	}
	return false
}
