package image

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"sync"
)

// maxFetches is how many layers of one image are fetched at once: a registry often
// limits the rate of a connection.
const maxFetches = 3

var errPullEnded = errors.New("the pull has ended")

// fetches are the layers of one image that are fetched ahead of their turn, each into
// a file without a name. What they hold is not checked against its digest.
type fetches struct {
	ctx   context.Context //nolint:containedctx // it lives for one pull
	files *remoteFiles
	dir   string
	admit func(size int64) error
	work  sync.WaitGroup

	mu      sync.Mutex
	waiting []string // layers that are not fetched yet, in the order of their turns
	running int
	ahead   map[string]*spool
}

// fetch begins to fetch layers, which are opened in this order. Files are made in the
// directory dir, unless admit, if set, returns an error for their size: such layers are
// fetched in their turn. stop ends what runs; a spool must not be read after it.
func (f *remoteFiles) fetch(dir string, layers []layer, admit func(size int64) error) (stop func()) {
	ctx, cancel := context.WithCancelCause(f.ctx)
	f.fetches = &fetches{ctx: ctx, files: f, dir: dir, admit: admit, ahead: make(map[string]*spool)}
	for _, l := range layers {
		if !slices.Contains(f.fetches.waiting, l.file) {
			f.fetches.waiting = append(f.fetches.waiting, l.file)
		}
	}
	return func() {
		cancel(errPullEnded)
		f.fetches.end()
	}
}

// open returns a layer in its turn: from its file, or else directly from the registry.
func (f *fetches) open(name string) io.ReadCloser {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s := f.ahead[name]; s != nil {
		delete(f.ahead, name)
		return s
	}
	f.waiting = slices.DeleteFunc(f.waiting, func(w string) bool { return w == name })
	f.running++
	f.advance()
	return &directLayer{blob: f.files.blob(f.ctx, name), fetches: f}
}

// advance starts fetches while fewer than maxFetches run. Needs mu.
func (f *fetches) advance() {
	for f.running < maxFetches && len(f.waiting) > 0 && f.ctx.Err() == nil {
		name := f.waiting[0]
		if f.admit != nil && f.admit(f.files.sizes[name]) != nil {
			return
		}
		s, err := newSpool(f.dir)
		if err != nil {
			return
		}
		f.waiting = f.waiting[1:]
		f.running++
		f.ahead[name] = s
		f.work.Go(func() {
			b := f.files.blob(f.ctx, name)
			s.fill(f.ctx, b)
			_ = b.Close()
			f.ended()
		})
	}
}

// ended lets the next fetch begin.
func (f *fetches) ended() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.running--
	f.advance()
}

// end waits for what runs, after the context has ended, and removes the files.
func (f *fetches) end() {
	f.work.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.ahead {
		_ = s.Close()
	}
}

// directLayer is a layer that is read from the registry in its turn.
type directLayer struct {
	*blob
	fetches *fetches
}

// Close implements io.Closer.
func (l *directLayer) Close() error {
	defer l.fetches.ended()
	return l.blob.Close()
}

// spool is a layer in a file. Its reader follows what is written.
type spool struct {
	file *os.File
	read int64

	mu      sync.Mutex
	more    sync.Cond
	written int64
	err     error // io.EOF at the end
}

func newSpool(dir string) (*spool, error) {
	file, err := os.CreateTemp(dir, "layer-")
	if err != nil {
		return nil, err
	}
	// It is gone when the server is killed.
	if err := os.Remove(file.Name()); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	s := &spool{file: file}
	s.more.L = &s.mu
	return s, nil
}

// fill writes everything that in has, and its error.
func (s *spool) fill(ctx context.Context, in io.Reader) {
	buf := make([]byte, 128<<10)
	for {
		n, err := in.Read(buf)
		if n > 0 {
			if _, werr := s.file.Write(buf[:n]); werr != nil {
				n, err = 0, unpackError(ctx, werr)
			}
		}
		s.mu.Lock()
		s.written += int64(n)
		s.err = err
		s.mu.Unlock()
		s.more.Signal()
		if err != nil {
			return
		}
	}
}

// Read implements io.Reader. It waits for what has not arrived.
func (s *spool) Read(p []byte) (int, error) {
	s.mu.Lock()
	for s.read == s.written && s.err == nil {
		s.more.Wait()
	}
	left, err := s.written-s.read, s.err
	s.mu.Unlock()
	if left == 0 {
		return 0, err
	}
	n, err := s.file.ReadAt(p[:min(int64(len(p)), left)], s.read)
	s.read += int64(n)
	return n, err
}

// Close implements io.Closer.
func (s *spool) Close() error { return s.file.Close() }
