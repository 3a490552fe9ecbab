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
	"time"
)

// driver is a Python process with one backend of deepagents, which does one piece
// of work at a time and says how long it took.
type driver struct {
	process *exec.Cmd
	orders  io.WriteCloser
	answers chan answer
	// lost is why it is not asked any more: an answer that comes after all would be
	// taken for that to the next piece of work.
	lost error
}

// answer is what the process says of a piece of work.
type answer struct {
	Seconds float64 `json:"seconds"`
	Error   string  `json:"error"`
}

// waitTimeout is how long one piece of work may take, and opening how long it may
// take until there is a first sandbox, and a pool where the backend makes one.
const (
	waitTimeout = 30 * time.Second
	opening     = 2 * time.Minute
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
// own clock. After one that did not end within its limit all others fail.
func (d *driver) do(ctx context.Context, work string, limit time.Duration) (time.Duration, error) {
	if d.lost != nil {
		return 0, d.lost
	}
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
		d.lost = fmt.Errorf("it did not come back from %q", work)
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
