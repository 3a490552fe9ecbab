package files

import (
	"os"

	"golang.org/x/sys/unix"
)

// source is an open regular file.
type source struct {
	*os.File
	stat unix.Stat_t
}
