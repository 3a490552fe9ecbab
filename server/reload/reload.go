// Package reload keeps what was parsed from files that an operator changes while
// the server runs: tokens, certificates, authorities.
package reload

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// interval is how often the files are looked at.
const interval = time.Second

// Files is a value of type T, parsed from one or more files. The files are read
// again when they are asked for, at most once a second, and compared by content:
// times of files are too coarse, and say nothing about a read that failed. While
// the new content cannot be read or parsed, the old value counts.
type Files[T any] struct {
	paths []string
	parse func(contents [][]byte) (T, error)
	log   *slog.Logger

	value   atomic.Pointer[T]
	checked atomic.Int64 // when the files were read, in unix nanoseconds

	mu      sync.Mutex
	sum     [sha256.Size]byte // of the contents that value was parsed from
	failing string            // the error that was logged last, empty when all is well
}

// Open reads the files. parse gets their contents in the order of paths.
func Open[T any](log *slog.Logger, parse func(contents [][]byte) (T, error), paths ...string) (*Files[T], error) {
	f := &Files[T]{paths: paths, parse: parse, log: log}
	if err := f.load(); err != nil {
		return nil, err
	}
	f.checked.Store(time.Now().UnixNano())
	return f, nil
}

// Get returns the value. The call that finds the files due for a look reads them;
// others meanwhile get the value as it is.
func (f *Files[T]) Get() T {
	if f.due() && f.mu.TryLock() {
		defer f.mu.Unlock()
		if f.due() {
			f.check()
		}
	}
	return *f.value.Load()
}

func (f *Files[T]) due() bool {
	return time.Since(time.Unix(0, f.checked.Load())) >= interval
}

// check reads the files and logs a failure once, as well as its end.
func (f *Files[T]) check() {
	err := f.load()
	f.checked.Store(time.Now().UnixNano())
	switch {
	case err == nil && f.failing != "":
		f.failing = ""
		f.log.Warn("files can be read again", "files", f.paths)
	case err != nil && err.Error() != f.failing:
		f.failing = err.Error()
		f.log.Error("files cannot be read again; what they held before counts", "files", f.paths, "error", err)
	}
}

func (f *Files[T]) load() error {
	contents := make([][]byte, len(f.paths))
	hash := sha256.New()
	for i, path := range f.paths {
		raw, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		contents[i] = raw
		hash.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(raw))))
		hash.Write(raw)
	}
	sum := [sha256.Size]byte(hash.Sum(nil))
	if f.value.Load() != nil && sum == f.sum {
		return nil
	}
	value, err := f.parse(contents)
	if err != nil {
		return fmt.Errorf("%s: %w", f.paths[0], err)
	}
	f.value.Store(&value)
	f.sum = sum
	return nil
}
