// Package terminal is the terminal that a command line was started in.
package terminal

import (
	"context"
	"fmt"
	"io"
	"os"

	"golang.org/x/term"

	sandgate "github.com/sandgate/sandgate/clients/go"
)

// Terminal is the terminal that this program was started in, if any.
type Terminal struct {
	in, out *os.File // nil: not a terminal
}

// Open returns the terminal behind a program's input and output.
func Open(in io.Reader, out io.Writer) *Terminal {
	t := &Terminal{}
	if file, ok := in.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		t.in = file
	}
	if file, ok := out.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		t.out = file
	}
	return t
}

// Shows reports whether the program's output is a terminal.
func (t *Terminal) Shows() bool { return t.out != nil }

// Size returns the terminal's size, or 24 by 80 without a terminal.
func (t *Terminal) Size() *sandgate.TerminalSize {
	for _, file := range []*os.File{t.out, t.in} {
		if file == nil {
			continue
		}
		if columns, rows, err := term.GetSize(int(file.Fd())); err == nil && rows > 0 && columns > 0 {
			return &sandgate.TerminalSize{Rows: int32(rows), Columns: int32(columns)}
		}
	}
	return &sandgate.TerminalSize{Rows: 24, Columns: 80}
}

// Raw passes every key to the command, Ctrl-C included, until the returned
// function is called. The caller must always call it.
func (t *Terminal) Raw() (func(), error) {
	if t.in == nil {
		return func() {}, nil
	}
	before, err := term.MakeRaw(int(t.in.Fd()))
	if err != nil {
		return nil, fmt.Errorf("set the terminal to raw mode: %w", err)
	}
	return func() { _ = term.Restore(int(t.in.Fd()), before) }, nil
}

// Follow resizes the command's terminal with this one, until ctx ends.
func (t *Terminal) Follow(ctx context.Context, process *sandgate.Process) {
	if t.out == nil && t.in == nil {
		return
	}
	changes, stop := Resizes()
	defer stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-changes:
			size := t.Size()
			// If this fails, the next change sets the size.
			_ = process.Resize(ctx, int(size.GetRows()), int(size.GetColumns()))
		}
	}
}
