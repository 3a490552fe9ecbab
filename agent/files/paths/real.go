package paths

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// errNoProc is returned if a policy needs the resolved path of a descriptor and there is
// no /proc. Then nothing is allowed.
var errNoProc = errors.New("cannot tell the resolved path: /proc is missing")

// deleted is what the kernel appends to the path of a removed file.
const deleted = " (deleted)"

// resolved returns the path of an open descriptor.
func resolved(fd int) (string, error) {
	p, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
	if err != nil {
		return "", fmt.Errorf("%w: %w", errNoProc, err)
	}
	if !strings.HasPrefix(p, "/") {
		return "", fmt.Errorf("%w: %q is not in this file system", ErrOutside, p)
	}
	if strings.HasSuffix(p, deleted) {
		// Either a name with this suffix, or a file that was removed after it was opened
		// and whose path would no longer match a prefix.
		var here, there unix.Stat_t
		if err := unix.Fstat(fd, &here); err != nil {
			return "", err
		}
		if err := unix.Lstat(p, &there); err != nil || here.Dev != there.Dev || here.Ino != there.Ino {
			return "", unix.ENOENT
		}
	}
	return p, nil
}
