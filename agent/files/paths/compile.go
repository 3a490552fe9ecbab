package paths

import (
	"fmt"
	"os"
	"path"
	"slices"

	"golang.org/x/sys/unix"
)

// compile opens the root and converts the policies to rules with resolved paths.
func (v *View) compile(policies []Policy) error {
	last, err := v.openRoot(policies)
	if err != nil {
		return err
	}
	for i, p := range policies {
		seen := v.virtual && i >= last // paths as the caller sees them
		r, err := v.rule(p, seen)
		if err != nil {
			return err
		}
		if p.Root != "" {
			if r.root, err = rootOf(p.Root); err != nil {
				return err
			}
		}
		if r.root != "" || len(r.writeAllow)+len(r.writeDeny)+len(r.readDeny) > 0 {
			v.rules = append(v.rules, r)
		}
	}
	return nil
}

// openRoot opens the last root, beneath which paths resolve, and returns the index of its
// policy. The other roots are checked against the opened path.
func (v *View) openRoot(policies []Policy) (int, error) {
	last := -1
	for i, p := range policies {
		if p.Root != "" {
			last = i
		} else if p.Virtual {
			return -1, fmt.Errorf("%w: a virtual policy without a root", ErrInvalid)
		}
	}
	if last < 0 {
		return -1, nil
	}
	text, err := prefix(policies[last].Root)
	if err != nil {
		return -1, err
	}
	fd, err := openat(unix.AT_FDCWD, text, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("root directory %q: %w", text, err)
	}
	v.root = os.NewFile(uintptr(fd), text)
	v.rootText, v.virtual = components(text), policies[last].Virtual
	v.rootReal, err = resolved(fd)
	return last, err
}

func rootOf(root string) (string, error) {
	text, err := prefix(root)
	if err != nil {
		return "", err
	}
	fd, err := openat(unix.AT_FDCWD, text, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC)
	if err != nil {
		return "", fmt.Errorf("root directory %q: %w", text, err)
	}
	defer func() { _ = unix.Close(fd) }()
	return resolved(fd)
}

func (v *View) rule(p Policy, seen bool) (rule, error) {
	var r rule
	var err error
	if r.writeAllow, err = v.prefixes(p.WriteAllow, seen, false); err != nil {
		return r, err
	}
	if r.writeDeny, err = v.prefixes(p.WriteDeny, seen, true); err != nil {
		return r, err
	}
	r.readDeny, err = v.prefixes(p.ReadDeny, seen, true)
	return r, err
}

// prefixes returns the prefixes as resolved paths. With links, it returns each both as
// written and as resolved.
func (v *View) prefixes(list []string, seen, links bool) ([]string, error) {
	var out []string
	for _, text := range list {
		clean, err := prefix(text)
		if err != nil {
			return nil, err
		}
		own := clean
		if seen {
			own = path.Join(v.rootReal, clean)
		}
		out = append(out, own)
		if !links {
			continue
		}
		real, err := v.existing(clean, seen)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(out, real) {
			out = append(out, real)
		}
	}
	return out, nil
}

// existing resolves the longest existing part of a clean path and appends the rest.
func (v *View) existing(clean string, seen bool) (string, error) {
	plain := &View{}
	if seen {
		plain = &View{root: v.root, rootText: v.rootText, rootReal: v.rootReal, virtual: true, kernel: v.kernel}
	}
	parts := components(clean)
	for n := len(parts); n >= 0; n-- {
		fd, err := plain.open(parts[:n], unix.O_PATH|unix.O_CLOEXEC)
		if err != nil {
			continue
		}
		real, err := resolved(fd)
		_ = unix.Close(fd)
		if err != nil {
			return "", err
		}
		return path.Join(append([]string{real}, parts[n:]...)...), nil
	}
	return "", fmt.Errorf("policy prefix %q: %w", clean, errNoProc)
}
