package streaming

import (
	"errors"
	"testing"
)

func TestSequence(t *testing.T) {
	ok := Sequence{}
	for i, err := range []error{
		ok.Started(), ok.Output(0, 5), ok.Output(5, 1), ok.Gap(6, 10), ok.Output(10, 2), ok.Exited(),
	} {
		if err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
	}
	for name, f := range map[string]func(*Sequence) error{
		"output before start": func(s *Sequence) error { return s.Output(0, 1) },
		"end before start":    func(s *Sequence) error { return s.Exited() },
		"two starts":          func(s *Sequence) error { _ = s.Started(); return s.Started() },
		"two ends":            func(s *Sequence) error { _ = s.Started(); _ = s.Exited(); return s.Exited() },
		"output after end":    func(s *Sequence) error { _ = s.Started(); _ = s.Exited(); return s.Output(0, 1) },
		"hole":                func(s *Sequence) error { _ = s.Started(); return s.Output(1, 1) },
		"overlap":             func(s *Sequence) error { _ = s.Started(); _ = s.Output(0, 2); return s.Output(1, 1) },
		"empty chunk":         func(s *Sequence) error { _ = s.Started(); return s.Output(0, 0) },
		"huge chunk":          func(s *Sequence) error { _ = s.Started(); return s.Output(0, MaxChunk+1) },
		"backward gap":        func(s *Sequence) error { _ = s.Started(); _ = s.Output(0, 2); return s.Gap(2, 1) },
		"error sticks":        func(s *Sequence) error { _ = s.Output(0, 1); return s.Started() },
	} {
		t.Run(name, func(t *testing.T) {
			if err := f(&Sequence{}); !errors.Is(err, ErrOrder) {
				t.Fatalf("got %v", err)
			}
		})
	}
}

// FuzzFrames checks Frames against a plain account of the same input.
func FuzzFrames(f *testing.F) {
	f.Add([]byte{0, 1, 1, 3, 2, 1, 0, 1, 2, 1, 3, 1})
	f.Add([]byte{0, 1, 1, 3, 3, 1})
	f.Add([]byte{0, 1, 0, 1})
	f.Add([]byte{1, 1})
	f.Fuzz(func(t *testing.T, in []byte) {
		var fr Frames
		open, files, ok := false, 0, true
		for i := 0; i+1 < len(in); i += 2 {
			n := int(int8(in[i+1]))
			var err error
			switch in[i] % 4 {
			case 0:
				ok, err = ok && !open, fr.Header()
				open, files = true, files+1
			case 1:
				ok, err = ok && open && n > 0, fr.Chunk(n)
			case 2:
				ok, err = ok && open, fr.Trailer()
				open = false
			case 3:
				if ok, err = ok && !open && files > 0, fr.Finish(); ok != (err == nil) {
					t.Fatalf("finish at %d: %v", i, err)
				}
				return
			}
			if ok != (err == nil) {
				t.Fatalf("step %d: %v, want ok %v", i, err, ok)
			}
			if err != nil && !errors.Is(err, ErrOrder) {
				t.Fatalf("not an order error: %v", err)
			}
		}
	})
}
