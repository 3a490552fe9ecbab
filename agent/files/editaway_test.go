package files

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/sandgate/sandgate/agent/protocol"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// Calls that wait for the lock of one file leave their slots to calls of others.
func TestLockedFileHoldsNoSlots(t *testing.T) {
	s, path := editable(t)
	var st unix.Stat_t
	if err := unix.Stat(filepath.Dir(path), &st); err != nil {
		t.Fatal(err)
	}
	key := fileKey{dev: st.Dev, ino: st.Ino, name: filepath.Base(path)}
	unlock, err := s.locks.lockKey(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	edited := make(chan error, 2*maxWork)
	for range cap(edited) {
		go func() { edited <- editLast(unconfined(context.Background()), s, path) }()
	}
	queued(t, s, key, 1+cap(edited))
	if _, err := s.StatFile(unconfined(t.Context()), &sandboxv1.StatFileRequest{Path: path}); err != nil {
		t.Error(err)
	}
	unlock()
	for range cap(edited) {
		if err := <-edited; err != nil && status.Code(err) != codes.NotFound {
			t.Error(err)
		}
	}
	if n := s.work.Held(); n > 0 {
		t.Errorf("%d slots are still held", n)
	}
}

// An edit during a move or removal of its file does not restore the file: the calls take
// effect one after the other.
func TestEditDoesNotRestoreARemovedFile(t *testing.T) {
	move := func(s *Service, path string) error {
		_, err := s.MoveFile(unconfined(context.Background()), &sandboxv1.MoveFileRequest{Source: path, Destination: path + ".moved"})
		return err
	}
	remove := func(s *Service, path string) error {
		_, err := s.RemoveFile(unconfined(context.Background()), &sandboxv1.RemoveFileRequest{Path: path})
		return err
	}
	for name, away := range map[string]func(*Service, string) error{"move": move, "remove": remove} {
		t.Run(name, func(t *testing.T) {
			s, path := editable(t)
			var st unix.Stat_t
			if err := unix.Stat(filepath.Dir(path), &st); err != nil {
				t.Fatal(err)
			}
			key := fileKey{dev: st.Dev, ino: st.Ino, name: filepath.Base(path)}
			unlock, err := s.locks.lockKey(t.Context(), key)
			if err != nil {
				t.Fatal(err)
			}
			edited, left := make(chan error, 1), make(chan error, 1)
			go func() { edited <- editLast(unconfined(context.Background()), s, path) }()
			go func() { left <- away(s, path) }()
			queued(t, s, key, 3)
			unlock()
			if err := <-left; err != nil {
				t.Error(err)
			}
			// Either may be the first.
			end := " end"
			if err := <-edited; status.Code(err) == codes.NotFound {
				end = " last"
			} else if err != nil {
				t.Error(err)
			}
			if name == "remove" {
				end = ""
			}
			gone(t, path, end)
		})
	}
}

// A command takes no lock: it moves the file while an edit reads it.
func TestEditBringsNothingBackFromACommand(t *testing.T) {
	s, path := editable(t)
	began := false
	ctx := &readingContext{Context: unconfined(context.Background()), reading: func() {
		if began {
			return
		}
		began = true
		if err := os.Rename(path, path+".moved"); err != nil {
			t.Error(err)
		}
	}}
	if err := editLast(ctx, s, path); status.Code(err) != codes.NotFound || !began {
		t.Errorf("the edit ended with %v, the file was moved: %v", err, began)
	}
	gone(t, path, " last")
}

// readingContext calls reading whenever a call checks the context, as an edit does before
// every block.
type readingContext struct {
	context.Context
	reading func()
}

func (c *readingContext) Err() error {
	c.reading()
	return c.Context.Err()
}

// unconfined returns the context of a call without gRPC.
func unconfined(ctx context.Context) context.Context {
	return metadata.NewIncomingContext(ctx, metadata.Pairs(protocol.CallContextKey, ""))
}

func editable(t *testing.T) (s *Service, path string) {
	t.Helper()
	s = New(Config{})
	t.Cleanup(s.Close)
	path = filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, []byte("word last"), 0o644); err != nil {
		t.Fatal(err)
	}
	return s, path
}

func editLast(ctx context.Context, s *Service, path string) error {
	_, err := s.EditFile(ctx, &sandboxv1.EditFileRequest{Path: path, OldText: []byte("last"), NewText: []byte("end")})
	return err
}

// queued waits until n have the lock or wait for it.
func queued(t *testing.T, s *Service, key fileKey, n int) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		s.locks.mu.Lock()
		users := s.locks.held[key].users
		s.locks.mu.Unlock()
		if users == n {
			return
		}
	}
	t.Fatalf("not %d at the lock", n)
}

func gone(t *testing.T, path, moved string) {
	t.Helper()
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("the file is back: %v", err)
	}
	if b, _ := os.ReadFile(path + ".moved"); !strings.HasSuffix(string(b), moved) || (moved == "") != (b == nil) {
		t.Errorf("moved: %q, want its end %q", b, moved)
	}
}
