// Package reload keeps the parsed content of files that an operator changes
// while the server runs: tokens, certificates, authorities.
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

// interval is the time between two reads of the files.
const interval = time.Second

// Files is a value of type T, parsed from one or more files. Get reads the
// files again at most once a second, and compares their contents: modification
// times are too coarse, and do not reveal a failed read. While the new content
// cannot be read or parsed, the old value stays in force.
type Files[T any] struct {
	paths []string
	parse func(contents [][]byte) (T, error)
	log   *slog.Logger

	value atomic.Pointer[T]
	// checked is when the files were read. It keeps its monotonic time, so a wall clock
	// that is set back delays no change.
	checked atomic.Pointer[time.Time]

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
	f.noteCheck()
	return f, nil
}

// Get returns the value. One call reads the files when that is due; concurrent
// calls return the present value.
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
	return time.Since(*f.checked.Load()) >= interval
}

func (f *Files[T]) noteCheck() {
	now := time.Now()
	f.checked.Store(&now)
}

// check reads the files. It logs a failure once, and its end.
func (f *Files[T]) check() {
	err := f.load()
	f.noteCheck()
	switch {
	case err == nil && f.failing != "":
		f.failing = ""
		f.log.Warn("files can be read again", "files", f.paths)
	case err != nil && err.Error() != f.failing:
		f.failing = err.Error()
		f.log.Error("files cannot be read again; their former content stays in force", "files", f.paths, "error", err)
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
