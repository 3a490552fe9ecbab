// Package landlock makes rulesets for Landlock, by which an unprivileged process restricts
// itself and its descendants.
//
// It restricts only writes. A ruleset can allow but not deny, so a denied directory within
// an allowed one is expressed by allowing everything around it; see expand.
package landlock

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Ruleset describes what a domain allows.
type Ruleset struct {
	// Allow lists the directories and files beneath which writes are allowed.
	// Nil: writes are not restricted. Missing paths and symbolic links are ignored.
	Allow []string
	// Deny lists directories beneath Allow that must not be written.
	Deny []string
	// Devices are existing files, and directories of files, that may be written.
	Devices []string
	// Scoped denies signals and connections to abstract unix sockets outside of the
	// domain, if the kernel supports that (ABI 6).
	Scoped bool
}

// ErrNothing is returned if the kernel can enforce no part of a ruleset.
var ErrNothing = errors.New("the kernel has no Landlock, or one that is too old")

// ABI returns the version of the kernel's Landlock, 0 if it has none. Tests replace it.
var ABI = sync.OnceValue(func() int {
	n, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return 0
	}
	return int(n)
})

// The first versions with the features that are needed.
const (
	abiRefer    = 2 // without it, renames and links across directories are denied
	abiTruncate = 3
	abiScoped   = 6
)

const (
	fileWrites = unix.LANDLOCK_ACCESS_FS_WRITE_FILE
	dirWrites  = unix.LANDLOCK_ACCESS_FS_REMOVE_DIR | unix.LANDLOCK_ACCESS_FS_REMOVE_FILE |
		unix.LANDLOCK_ACCESS_FS_MAKE_CHAR | unix.LANDLOCK_ACCESS_FS_MAKE_DIR | unix.LANDLOCK_ACCESS_FS_MAKE_REG |
		unix.LANDLOCK_ACCESS_FS_MAKE_SOCK | unix.LANDLOCK_ACCESS_FS_MAKE_FIFO | unix.LANDLOCK_ACCESS_FS_MAKE_BLOCK |
		unix.LANDLOCK_ACCESS_FS_MAKE_SYM | unix.LANDLOCK_ACCESS_FS_REFER
)

// Writes reports whether the kernel can restrict writes to directories without denying
// renames.
func Writes() bool { return ABI() >= abiRefer }

// Scopes reports whether the kernel can restrict signals and connections to abstract unix
// sockets to a domain.
func Scopes() bool { return ABI() >= abiScoped }

// Truncates reports whether the kernel can restrict truncation. If not, a file that can't
// be written can still be truncated.
func Truncates() bool { return ABI() >= abiTruncate }

func accesses() (file, all uint64) {
	file = fileWrites
	if Truncates() {
		file |= unix.LANDLOCK_ACCESS_FS_TRUNCATE
	}
	return file, file | dirWrites
}

// Create returns the descriptor of a ruleset, which the caller closes. exact is false if a
// directory of Deny stays writable because the rest of its parent can't be allowed without
// it. It does not cover truncation; see Truncates.
func Create(r Ruleset) (fd int, exact bool, err error) {
	var attr unix.LandlockRulesetAttr
	file, all := accesses()
	if r.Allow != nil && Writes() {
		attr.Handled_access_fs = all
	}
	if r.Scoped && Scopes() {
		attr.Scoped = unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET | unix.LANDLOCK_SCOPE_SIGNAL
	}
	if attr.Handled_access_fs == 0 && attr.Scoped == 0 {
		return -1, false, ErrNothing
	}
	// Later fields came after Scoped; older kernels accept the size up to it.
	size := unsafe.Offsetof(attr.Scoped) + unsafe.Sizeof(attr.Scoped)
	n, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), size, 0)
	if errno != 0 {
		return -1, false, fmt.Errorf("create Landlock ruleset: %w", errno)
	}
	fd = int(n)
	if attr.Handled_access_fs == 0 {
		return fd, len(r.Deny) == 0, nil
	}
	allowed, exact := expand(r.Allow, r.Deny)
	for _, path := range allowed {
		err = errors.Join(err, allow(fd, path, file, all))
	}
	for _, path := range r.Devices {
		err = errors.Join(err, allow(fd, path, file, file))
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, false, err
	}
	return fd, exact, nil
}

// allow adds a rule for the file at path, or for the directory and everything beneath it.
func allow(ruleset int, path string, file, dir uint64) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil // the path does not exist, or commands can't reach it
	}
	defer func() { _ = unix.Close(fd) }()
	if real, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd)); err != nil || real != path {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("stat: %w", err)
	}
	rights := file
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		return nil
	case unix.S_IFDIR:
		rights = dir
	}
	// The kernel's struct is packed: 12 bytes.
	rule := unix.LandlockPathBeneathAttr{Allowed_access: rights, Parent_fd: int32(fd)}
	_, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(ruleset), unix.LANDLOCK_RULE_PATH_BENEATH,
		uintptr(unsafe.Pointer(&rule)), 0, 0, 0)
	if errno != 0 {
		return fmt.Errorf("allow writes to %s: %w", path, errno)
	}
	return nil
}
