// Command writer is the command that the chaos test runs in its sandboxes: it
// notes that it ran, writes what its seed says, and ends as it was told.
package main

import (
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"syscall"
	"time"

	"github.com/sandgate/sandgate/test/chaos/stream"
)

func main() {
	var (
		id     = flag.String("id", "", "what to append to -ran, once")
		ran    = flag.String("ran", "", "the file of those that ran")
		seed   = flag.Uint64("seed", 0, "of all bytes, sizes and pauses")
		stdout = flag.Int64("stdout", 0, "bytes to write to standard output, -1: without end")
		stderr = flag.Int64("stderr", 0, "bytes to write to standard error")
		pause  = flag.Duration("pause", 0, "mean pause between two pieces")
		echo   = flag.Bool("echo", false, "copy standard input to standard output first")
		code   = flag.Int("code", 0, "exit code")
		signal = flag.Int("signal", 0, "signal to end by, instead of a code")
	)
	flag.Parse()
	if err := note(*ran, *id); err != nil {
		fail(err)
	}
	if *echo {
		if _, err := io.Copy(os.Stdout, os.Stdin); err != nil {
			fail(err)
		}
	}
	if err := write(*seed, *stdout, *stderr, *pause); err != nil {
		fail(err)
	}
	if *signal != 0 {
		_ = syscall.Kill(os.Getpid(), syscall.Signal(*signal))
		time.Sleep(time.Minute) // The signal may be another thread's to take.
	}
	os.Exit(*code)
}

// fail spoils the output and the code: the test must notice.
func fail(err error) {
	fmt.Fprintln(os.Stderr, "writer:", err)
	os.Exit(255)
}

// note appends the id in one write, which needs no lock.
func note(path, id string) error {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	if _, err := f.WriteString(id + "\n"); err != nil {
		return err
	}
	return f.Close()
}

// output is one of the two streams.
type output struct {
	to    io.Writer
	bytes *stream.Stream
	left  int64 // below 0: endless
}

// write writes both streams in pieces of every size, in turns by chance.
func write(seed uint64, stdout, stderr int64, pause time.Duration) error {
	outputs := []*output{
		{os.Stdout, stream.New(seed, 1), stdout},
		{os.Stderr, stream.New(seed, 2), stderr},
	}
	chance := rand.New(rand.NewPCG(seed, 3))
	buffer := make([]byte, 64<<10)
	for outputs[0].left != 0 || outputs[1].left != 0 {
		o := outputs[chance.IntN(2)]
		if o.left == 0 {
			continue
		}
		n := 1 + chance.Int64N(1<<chance.IntN(17))
		if o.left > 0 {
			n = min(n, o.left)
			o.left -= n
		}
		piece := buffer[:n]
		if _, err := io.ReadFull(o.bytes, piece); err != nil {
			return err
		}
		if _, err := o.to.Write(piece); err != nil {
			return err
		}
		if pause > 0 {
			time.Sleep(time.Duration(chance.ExpFloat64() * float64(pause)))
		}
	}
	return nil
}
