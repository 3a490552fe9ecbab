//go:build unix

package admission

import "golang.org/x/sys/unix"

// descriptors returns how many files this process may have open.
func descriptors() uint64 {
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &l) != nil {
		return 0
	}
	return uint64(l.Cur)
}
