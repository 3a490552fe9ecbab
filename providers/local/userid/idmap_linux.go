package userid

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// ownerMap shows the files of one owner as another's.
func ownerMap(from, to uint32) []syscall.SysProcIDMap {
	moved := syscall.SysProcIDMap{ContainerID: int(from), HostID: int(to), Size: 1}
	if from >= Unmapped {
		return []syscall.SysProcIDMap{{Size: Unmapped}, moved}
	}
	maps := []syscall.SysProcIDMap{moved}
	if from > 0 {
		maps = append(maps, syscall.SysProcIDMap{Size: int(from)})
	}
	if next := int(from) + 1; next < Unmapped {
		maps = append(maps, syscall.SysProcIDMap{ContainerID: next, HostID: next, Size: Unmapped - next})
	}
	return maps
}

// Owner is the user and group of files.
type Owner struct{ UID, GID uint32 }

// Mapping changes the owners of files.
type Mapping struct{ uids, gids []syscall.SysProcIDMap }

// MapOwner shows one owner's files as another's.
func MapOwner(from, to Owner) Mapping {
	return Mapping{ownerMap(from.UID, to.UID), ownerMap(from.GID, to.GID)}
}

// MapRange shows the ids from 0 on as those of a range.
func MapRange(base uint32) Mapping {
	ids := []syscall.SysProcIDMap{{HostID: int(base), Size: RangeSize}}
	return Mapping{ids, ids}
}

// MountMapped mounts a directory elsewhere, with the owners of its files changed. It
// must run on a locked thread.
func MountMapped(source, at string, m Mapping) (err error) {
	userns, err := openUserNamespace(m)
	if err != nil {
		return fmt.Errorf("make a user namespace: %w", err)
	}
	defer func() { _ = userns.Close() }()
	tree, err := unix.OpenTree(unix.AT_FDCWD, source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return fmt.Errorf("open_tree: %w", err)
	}
	defer func() { _ = unix.Close(tree) }()
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(userns.Fd())}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return fmt.Errorf("map the owners of %s: %w", source, err)
	}
	if err := unix.MoveMount(tree, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("move_mount: %w", err)
	}
	return nil
}

// openUserNamespace makes a user namespace by a child that never runs: it is
// traced, and so stops at its exec.
func openUserNamespace(m Mapping) (*os.File, error) {
	child, err := os.StartProcess("/proc/self/exe", []string{"sandgate-userns"}, &os.ProcAttr{
		Env: []string{},
		Sys: &syscall.SysProcAttr{
			Cloneflags: unix.CLONE_NEWUSER, UidMappings: m.uids, GidMappings: m.gids, GidMappingsEnableSetgroups: true, Ptrace: true, Pdeathsig: syscall.SIGKILL,
		},
	})
	if err != nil {
		return nil, err
	}
	file, err := os.Open("/proc/" + strconv.Itoa(child.Pid) + "/ns/user")
	killErr := child.Kill()
	for {
		state, waitErr := child.Wait()
		if waitErr != nil || state.Exited() || state.Sys().(syscall.WaitStatus).Signaled() {
			return file, errors.Join(err, killErr, waitErr)
		}
	}
}
