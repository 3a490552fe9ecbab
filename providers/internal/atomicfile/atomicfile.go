// Package atomicfile replaces files so that readers see either the old or the
// new content.
package atomicfile

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// WriteJSON replaces a file by the JSON of a value. Only root can read it.
func WriteJSON(path string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return Write(path, data)
}

// Write replaces a file. Only root can read it.
func Write(path string, data []byte) error { return write(path, data, 0o600) }

// WriteDurable replaces a file and survives a power cut: the data is on the disk
// before the name is.
func WriteDurable(path string, data []byte, mode fs.FileMode) error {
	part := path + ".part"
	if err := write(part, data, mode); err != nil {
		return err
	}
	err := Sync(part)
	if err == nil {
		err = os.Rename(part, path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(part))
	}
	return nil
}

// Sync writes a file's data to the disk.
func Sync(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func write(path string, data []byte, mode fs.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Chmod(mode), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}
