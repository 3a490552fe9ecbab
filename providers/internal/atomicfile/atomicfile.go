// Package atomicfile replaces files so that readers see either the old or the
// new content.
package atomicfile

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
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

// Unfinished returns the files of a directory that Write has not renamed yet, by the
// name of the file that each was to replace. Those of a killed process stay.
func Unfinished(dir string) (map[string][]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	found := make(map[string][]string)
	for _, e := range entries {
		hidden, dotted := strings.CutPrefix(e.Name(), ".")
		i := strings.LastIndexByte(hidden, '-')
		if !dotted || i <= 0 || !e.Type().IsRegular() || !isNumber(hidden[i+1:]) {
			continue
		}
		found[hidden[:i]] = append(found[hidden[:i]], filepath.Join(dir, e.Name()))
	}
	return found, nil
}

func isNumber(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }

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
