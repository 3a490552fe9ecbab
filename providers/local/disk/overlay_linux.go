package disk

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Overlay is one overlay mount. Without Upper it is read-only.
type Overlay struct {
	Layers      []string // the first is on top
	Upper, Work string
}

// Mount mounts the overlay at a directory. The mount table, which every process
// of the sandbox can read, shows numbers of descriptors in place of host paths.
func (o Overlay) Mount(at string) error {
	var open []*os.File
	defer func() {
		for _, f := range open {
			_ = f.Close()
		}
	}()
	handle := func(dir string) (string, error) {
		fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return "", fmt.Errorf("open %s: %w", dir, err)
		}
		open = append(open, os.NewFile(uintptr(fd), dir))
		return "/proc/self/fd/" + strconv.Itoa(fd), nil
	}
	layers := make([]string, 0, len(o.Layers))
	for _, dir := range o.Layers {
		name, err := handle(dir)
		if err != nil {
			return err
		}
		layers = append(layers, name)
	}
	data := "lowerdir=" + strings.Join(layers, ":")
	flags := uintptr(unix.MS_NOSUID | unix.MS_NODEV)
	if o.Upper == "" {
		flags |= unix.MS_RDONLY
	} else {
		upper, err := handle(o.Upper)
		if err != nil {
			return err
		}
		work, err := handle(o.Work)
		if err != nil {
			return err
		}
		data += ",upperdir=" + upper + ",workdir=" + work
	}
	if err := unix.Mount("overlay", at, "overlay", flags, data); err != nil {
		return fmt.Errorf("mount an overlay of %s: %w", strings.Join(o.Layers, ", "), err)
	}
	return nil
}
