package userid

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// ownerMap shows the files of one owner as another's, those of root as root's, and those
// of others below Unmapped as the ids from base on.
func ownerMap(from, to, root, base uint32) []syscall.SysProcIDMap {
	ids := []syscall.SysProcIDMap{{ContainerID: int(from), HostID: int(to), Size: 1}}
	add := func(first, end, host uint32) {
		if first < end {
			ids = append(ids, syscall.SysProcIDMap{ContainerID: int(first), HostID: int(host), Size: int(end - first)})
		}
	}
	if from != 0 {
		add(0, 1, root)
	}
	add(1, min(from, Unmapped), base+1)
	add(from+1, Unmapped, base+from+1)
	return ids
}

// Owner is the user and group of files.
type Owner struct{ UID, GID uint32 }

// Mapping is that of a user namespace: from the ids inside, or from the owners of files,
// to those of the host.
type Mapping struct{ UIDs, GIDs []syscall.SysProcIDMap }

// MapOwner shows one owner's files as another's.
func MapOwner(from, to Owner) Mapping {
	return Mapping{ownerMap(from.UID, to.UID, 0, 0), ownerMap(from.GID, to.GID, 0, 0)}
}

// MapSystem shows one owner's files as another's, and all others with ids that no
// process has. With one owner for both, it is the user namespace of a sandbox whose
// user this is.
func MapSystem(from, to Owner) Mapping {
	root := NamespaceRoot(to)
	return Mapping{ownerMap(from.UID, to.UID, root.UID, SystemBase), ownerMap(from.GID, to.GID, root.GID, SystemBase)}
}

// NamespaceRoot is root of the user namespace of a sandbox with this user.
func NamespaceRoot(user Owner) Owner {
	return Owner{UID: NamespaceRootBase + user.UID%Count, GID: NamespaceRootBase + user.GID%Count}
}

// MapRange shows the ids from 0 on as those of a range.
func MapRange(base uint32) Mapping {
	ids := []syscall.SysProcIDMap{{HostID: int(base), Size: RangeSize}}
	return Mapping{ids, ids}
}

// MountMapped mounts a directory elsewhere, read-only, with the owners of its files
// changed. It must run on a locked thread.
func MountMapped(source, at string, m Mapping) error {
	userns, err := openUserNamespace(m)
	if err != nil {
		return fmt.Errorf("make a user namespace: %w", err)
	}
	defer func() { _ = userns.Close() }()
	return mountMapped(source, at, userns)
}

// MountMappedBy is MountMapped with the mapping of the user namespace at a path.
func MountMappedBy(namespace, source, at string) error {
	userns, err := os.Open(namespace)
	if err != nil {
		return err
	}
	defer func() { _ = userns.Close() }()
	return mountMapped(source, at, userns)
}

func mountMapped(source, at string, userns *os.File) error {
	tree, err := unix.OpenTree(unix.AT_FDCWD, source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return fmt.Errorf("open_tree %s: %w", source, err)
	}
	defer func() { _ = unix.Close(tree) }()
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP | unix.MOUNT_ATTR_RDONLY, Userns_fd: uint64(userns.Fd())}
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
			Cloneflags: unix.CLONE_NEWUSER, UidMappings: m.UIDs, GidMappings: m.GIDs, GidMappingsEnableSetgroups: true, Ptrace: true, Pdeathsig: syscall.SIGKILL,
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
