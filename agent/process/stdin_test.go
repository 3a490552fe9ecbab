package process

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"testing"
	"time"
)

// A write after a cancelled one is complete.
func TestStdinAfterCancelledWrite(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	var reader sync.WaitGroup
	reader.Go(func() { _, _ = io.Copy(io.Discard, r) })
	defer func() {
		_ = w.Close()
		reader.Wait()
		_ = r.Close()
	}()
	s := newStdin(false, 0)
	s.file = w
	for range 20_000 {
		ctx, cancel := context.WithCancel(t.Context())
		var first sync.WaitGroup
		first.Go(cancel)
		first.Go(func() { _, _ = s.write(ctx, s.taken(), []byte("a"), false) })
		at := s.taken()
		next, err := s.write(t.Context(), at, []byte("bcdefgh"), false)
		if err == nil && next < at+7 {
			t.Fatalf("7 bytes at %d: the next offset is %d, without an error", at, next)
		}
		first.Wait()
		cancel()
	}
}

// A write that waits for another one is interrupted by its own context.
func TestStdinBehindBlockedWrite(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	s := newStdin(false, 0)
	s.file = w
	full := make(chan error, 1)
	go func() {
		_, err := s.write(context.Background(), 0, make([]byte, 1<<20), false)
		full <- err
	}()
	for len(s.writing) == 0 {
		time.Sleep(time.Millisecond)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := s.write(ctx, 0, []byte("b"), false); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	_ = r.Close()
	if err := <-full; !errors.Is(err, errStdinClosed) {
		t.Error(err)
	}
	s.close()
}
