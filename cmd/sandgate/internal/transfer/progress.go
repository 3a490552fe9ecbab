package transfer

import (
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"github.com/sandgate/sandgate/cmd/sandgate/internal/terminal"
)

// progress shows the progress of a copy, on a terminal only.
type progress struct {
	bar   *progressbar.ProgressBar // nil: nothing is shown
	total int64
	done  int64 // of files that are complete
	last  int64 // of the file in transfer
}

// bar starts to show a copy of size bytes; -1: unknown.
func (c *Copy) bar(name string, size int64) *progress {
	file, ok := c.Progress.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) {
		return &progress{}
	}
	return &progress{total: size, bar: progressbar.NewOptions64(size,
		progressbar.OptionSetWriter(file),
		progressbar.OptionSetDescription(terminal.Clean(name)),
		progressbar.OptionShowBytes(true),
		progressbar.OptionSetPredictTime(true),
		progressbar.OptionThrottle(100*time.Millisecond),
		progressbar.OptionFullWidth(),
		progressbar.OptionClearOnFinish(),
		progressbar.OptionUseANSICodes(true),
	)}
}

// set sets the bytes done of the current file.
func (p *progress) set(done int64) {
	p.last = done
	if p.bar != nil {
		_ = p.bar.Set64(p.done + done)
	}
}

// setOf is set for a file whose size becomes known during the transfer.
func (p *progress) setOf(done, size int64) {
	if p.bar != nil && p.total < size {
		p.total = size
		p.bar.ChangeMax64(size)
	}
	p.set(done)
}

// part returns set for the next file of several.
func (p *progress) part() func(int64) {
	first := true
	return func(done int64) {
		if first {
			first, p.done, p.last = false, p.done+p.last, 0
		}
		p.set(done)
	}
}

// partOf returns setOf for the next file of several.
func (p *progress) partOf() func(done, size int64) {
	p.done, p.last = p.done+p.last, 0
	return func(done, size int64) { p.setOf(done, p.done+size) }
}

// end removes the bar.
func (p *progress) end() {
	if p.bar != nil {
		_ = p.bar.Clear()
	}
}
