package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"
)

// install copies this program into a directory, for an init container that shares the
// directory with a container whose image has no tool for it.
func install(args []string) error {
	if len(args) != 1 || !filepath.IsAbs(args[0]) {
		return errUsage
	}
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		return err
	}
	defer func() { _ = self.Close() }()
	part, err := os.CreateTemp(args[0], ".sandgate-agent-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(part.Name()) }()
	_, err = io.Copy(part, self)
	if err = errors.Join(err, part.Chmod(0o755), part.Close()); err != nil {
		return err
	}
	return os.Rename(part.Name(), filepath.Join(args[0], "sandgate-agent"))
}
