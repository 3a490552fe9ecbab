// Package landlock makes rulesets for Linux's Landlock, by which a process that
// has no privilege takes rights away from itself and its descendants.
//
// Only writes are handled: what may be read is not Landlock's matter here. A
// ruleset allows and cannot forbid, so a directory that is denied within one that
// is allowed is expressed by allowing everything around it; see expand.
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

// Ruleset says what a domain allows.
type Ruleset struct {
	// Allow lists the directories and files beneath which writes are allowed.
	// Nil: writes are not handled at all. What does not exist is left out, and
	// so is what a symbolic link leads elsewhere.
	Allow []string
	// Deny lists directories beneath Allow that must not be written.
	Deny []string
	// Devices are files, and directories of files, that exist and may be written
	// wherever they are.
	Devices []string
	// Scoped denies signals and connections to abstract unix sockets that lead
	// out of the domain, where the kernel can do that (ABI 6).
	Scoped bool
}

// ErrNothing is returned for a ruleset of which the kernel enforces nothing.
var ErrNothing = errors.New("the kernel has no Landlock, or one that is too old")

// ABI returns the kernel's version of Landlock, 0 without it. Tests replace it.
var ABI = sync.OnceValue(func() int {
	n, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return 0
	}
	return int(n)
})

// The first versions that can do what is needed.
const (
	abiRefer    = 2 // without it, nothing may be renamed or linked across directories
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

// Writes reports whether the kernel can hold writes to directories without
// taking renames away.
func Writes() bool { return ABI() >= abiRefer }

// Scopes reports whether the kernel can hold signals and connections to abstract
// unix sockets to a domain.
func Scopes() bool { return ABI() >= abiScoped }

// Truncates reports whether the kernel can hold truncation, too, to what may be
// written. Without that, a file that may not be written can still be emptied.
func Truncates() bool { return ABI() >= abiTruncate }

func accesses() (file, all uint64) {
	file = fileWrites
	if Truncates() {
		file |= unix.LANDLOCK_ACCESS_FS_TRUNCATE
	}
	return file, file | dirWrites
}

// Create returns the descriptor of a ruleset, which the caller closes. exact is
// false if a directory of Deny stays writable because the rest of its parent
// could not be allowed without it. It says nothing of truncation; see Truncates.
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
	// What follows came later than Scoped. Older kernels take the rest if it is 0.
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

// allow adds a rule for the file at path, or for the directory there and all
// beneath it.
func allow(ruleset int, path string, file, dir uint64) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil // nothing is there, or nothing that commands can reach
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
