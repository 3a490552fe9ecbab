package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	"github.com/sandgate/sandgate/bench/report"
)

// driver is a Python process with one backend of deepagents, which does one piece
// of work at a time and says how long it took.
type driver struct {
	process *exec.Cmd
	orders  io.WriteCloser
	answers chan answer
}

// answer is what the process says of a piece of work.
type answer struct {
	Seconds float64 `json:"seconds"`
	Error   string  `json:"error"`
}

// patience is how long one piece of work may take, and opening how long it may
// take until there is a first sandbox, and a pool where the backend makes one.
const (
	patience = 30 * time.Second
	opening  = 2 * time.Minute
)

// drive starts a process. The settings are those of peers/drive.py.
func drive(interpreter, backend string, settings map[string]any, env ...string) (*driver, error) {
	_, here, _, ok := runtime.Caller(0)
	if !ok {
		return nil, errors.New("where the driver's script is, is unknown")
	}
	data, err := json.Marshal(settings)
	if err != nil {
		return nil, err
	}
	d := &driver{answers: make(chan answer)}
	d.process = exec.Command(interpreter, filepath.Join(filepath.Dir(here), "peers", "drive.py"), backend, string(data))
	d.process.Env = append(os.Environ(), env...)
	if d.orders, err = d.process.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := d.process.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if os.Getenv("SANDGATE_BENCH_DEBUG") != "" {
		d.process.Stderr = os.Stderr
	}
	if err := d.process.Start(); err != nil {
		return nil, err
	}
	go d.read(out)
	return d, nil
}

// read passes answers on, until the process closes its output.
func (d *driver) read(out io.Reader) {
	defer close(d.answers)
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		var a answer
		if err := json.Unmarshal(lines.Bytes(), &a); err != nil {
			a.Error = fmt.Sprintf("the driver said %q", lines.Bytes())
		}
		d.answers <- a
	}
}

// do has one piece of work done and returns how long it took, by the process's
// own clock.
func (d *driver) do(ctx context.Context, work string, limit time.Duration) (time.Duration, error) {
	if _, err := io.WriteString(d.orders, work+"\n"); err != nil {
		return 0, err
	}
	select {
	case a, ok := <-d.answers:
		switch {
		case !ok:
			return 0, errors.New("the driver ended")
		case a.Error != "":
			return 0, errors.New(a.Error)
		}
		return time.Duration(a.Seconds * float64(time.Second)), nil
	case <-time.After(limit):
		return 0, fmt.Errorf("no end within %v", limit)
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}

// close lets the process delete what it made.
func (d *driver) close() {
	_ = d.orders.Close()
	kill := time.AfterFunc(5*time.Second, func() { _ = d.process.Process.Kill() })
	defer kill.Stop()
	for range d.answers { // read ends before Wait
	}
	_ = d.process.Wait()
}

// work is what is compared: its order to the driver, and how often.
type work struct {
	what, order string
	times       int
}

func works() []work {
	small, large := strconv.Itoa(64<<10), strconv.Itoa(10<<20)
	return []work{
		{"execute true", "execute", 20},
		{"read 100 lines", "read", 20},
		{"write 2 kB", "write", 20},
		{"grep 20 files", "grep", 10},
		{"upload 64 KiB", "upload " + small, 10},
		{"download 64 KiB", "download " + small, 10},
		{"download 10 MiB", "download " + large, 3},
		{"create → first command, warm", "first", 3},
		// The last one, since a peer may not come back from it.
		{"upload 10 MiB", "upload " + large, 3},
	}
}

// compare has both do the same work in turns. What the other one cannot do is
// said in the table, with its own words.
func (b *bench) compare(ctx context.Context, name string, ours, theirs *driver, settle func() error) ([]report.Figure, error) {
	for _, d := range []*driver{ours, theirs} {
		if _, err := d.do(ctx, "open", opening); err != nil {
			return nil, fmt.Errorf("opening a sandbox: %w", err)
		}
	}
	var figures []report.Figure
	for _, w := range works() {
		var a, z report.Samples
		var refused error
		for i := range b.count(w.times) + 1 {
			if w.order == "first" || i == 0 {
				if err := settle(); err != nil {
					return figures, err
				}
			}
			took, err := ours.do(ctx, w.order, patience)
			if err != nil {
				return figures, fmt.Errorf("sandgate, %s: %w", w.order, err)
			}
			if refused != nil {
				a = append(a, took)
				continue
			}
			if w.order == "first" {
				if err := settle(); err != nil {
					return figures, err
				}
			}
			peer, err := theirs.do(ctx, w.order, patience)
			if err != nil {
				refused = err
			}
			if i > 0 || refused != nil { // the first ones fill caches
				a, z = append(a, took), append(z, peer)
			}
		}
		f := report.Latency(w.what+", Python | "+name, a, z, 0.5, report.AtMost(1), report.Bound{})
		if refused != nil {
			f = report.Figure{What: f.What, Ours: f.Ours, Theirs: "failed", Note: refused.Error()}
		}
		figures = append(figures, f)
	}
	return figures, nil
}
