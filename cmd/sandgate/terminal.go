package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"golang.org/x/term"

	sandgate "github.com/sandgate/sandgate/clients/go"
)

// terminal is what this program was started on, if that is a terminal.
type terminal struct {
	in, out *os.File // nil: not a terminal
}

func openTerminal(in io.Reader, out io.Writer) *terminal {
	t := &terminal{}
	if file, ok := in.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		t.in = file
	}
	if file, ok := out.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		t.out = file
	}
	return t
}

// size returns the terminal's size; that of a usual one where there is none.
func (t *terminal) size() *sandgate.TerminalSize {
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

// raw hands every key to the command, Ctrl-C included, until the returned
// function is called. It must be called however the command ends.
func (t *terminal) raw() (func(), error) {
	if t.in == nil {
		return func() {}, nil
	}
	before, err := term.MakeRaw(int(t.in.Fd()))
	if err != nil {
		return nil, fmt.Errorf("set the terminal to raw mode: %w", err)
	}
	return func() { _ = term.Restore(int(t.in.Fd()), before) }, nil
}

// follow tells the command when the terminal's size changes, until ctx ends.
func (t *terminal) follow(ctx context.Context, process *sandgate.Process) {
	if t.out == nil && t.in == nil {
		return
	}
	changes, stop := resizes()
	defer stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-changes:
			size := t.size()
			// A size that did not arrive is followed by the next one.
			_ = process.Resize(ctx, int(size.GetRows()), int(size.GetColumns()))
		}
	}
}
