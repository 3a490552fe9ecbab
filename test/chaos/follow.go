//go:build linux

package main

import (
	"bytes"
	"fmt"

	sandgate "github.com/sandgate/sandgate/clients/go"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/test/chaos/stream"
)

// chunk is some output of one stream at a position.
type chunk struct {
	position int64
	stream   sandboxv1.Stream
	data     []byte
}

// follow reads a command to its end and compares every byte. It returns the output in
// order.
func (j *job) follow(p *sandgate.Process, t *tally) (log []chunk, err error) {
	stdout, stderr := stream.New(j.seed, 1), stream.New(j.seed, 2)
	var position int64
	var exited *sandgate.Exited
	for event, err := range p.Events() {
		switch {
		case err != nil:
			return log, fmt.Errorf("at position %d: %w", position, err)
		case exited != nil:
			return log, fmt.Errorf("an event after the end: %v", event)
		case event.Gap != nil:
			return log, fmt.Errorf("a gap from %d to %d", event.Gap.GetStart(), event.Gap.GetEnd())
		case event.Exited != nil:
			exited = event.Exited
		default:
			out := event.Output
			if out.GetPosition() != position {
				return log, fmt.Errorf("output at position %d, want %d", out.GetPosition(), position)
			}
			want := stdout
			if out.GetStream() == sandgate.Stderr {
				want = stderr
			}
			if err := want.Compare(out.GetData()); err != nil {
				return log, fmt.Errorf("%v at position %d: %w", out.GetStream(), position, err)
			}
			position += int64(len(out.GetData()))
			t.bytes.Add(int64(len(out.GetData())))
			if j.kind == jobReplay {
				log = append(log, chunk{out.GetPosition(), out.GetStream(), out.GetData()})
			}
		}
	}
	return log, j.checkExit(exited, stdout.At(), stderr.At())
}

// checkExit checks the exit status against the request and the received output.
func (j *job) checkExit(e *sandgate.Exited, stdout, stderr int64) error {
	if e == nil {
		return fmt.Errorf("the events ended without an end of the command")
	}
	if e.GetStdoutBytes() != stdout || e.GetStderrBytes() != stderr || e.GetPosition() != stdout+stderr {
		return fmt.Errorf("%d and %d bytes arrived, the exit status has %d and %d, position %d",
			stdout, stderr, e.GetStdoutBytes(), e.GetStderrBytes(), e.GetPosition())
	}
	if j.stdout >= 0 && (stdout != j.stdout || stderr != j.stderr) {
		return fmt.Errorf("%d and %d bytes arrived, want %d and %d; ended: %v", stdout, stderr, j.stdout, j.stderr, e)
	}
	reason, signal := sandboxv1.ExitReason_EXIT_REASON_EXITED, ""
	switch {
	case j.kind == jobTimeout:
		reason = sandboxv1.ExitReason_EXIT_REASON_TIMED_OUT
	case j.kind == jobKill || j.kind == jobCancel:
		reason = sandboxv1.ExitReason_EXIT_REASON_KILLED
	case j.signal != 0:
		reason, signal = sandboxv1.ExitReason_EXIT_REASON_SIGNALED, signalNames[int(j.signal)]
	}
	if e.GetReason() != reason || signal != "" && e.GetSignal() != signal ||
		reason == sandboxv1.ExitReason_EXIT_REASON_EXITED && int(e.GetExitCode()) != j.code {
		return fmt.Errorf("ended %v", e)
	}
	return nil
}

// signalNames are the names of the jobs' signals.
var signalNames = map[int]string{9: "SIGKILL", 1: "SIGHUP", 15: "SIGTERM"}

// checkReplay checks that a second read from a position returns the same bytes of the
// same streams in the same order.
func checkReplay(p *sandgate.Process, from int64, log []chunk, t *tally) error {
	position := from
	for event, err := range p.Events() {
		switch {
		case err != nil:
			return fmt.Errorf("at position %d: %w", position, err)
		case event.Gap != nil:
			return fmt.Errorf("a gap from %d to %d", event.Gap.GetStart(), event.Gap.GetEnd())
		case event.Output != nil:
			data := event.Output.GetData()
			if event.Output.GetPosition() != position {
				return fmt.Errorf("output at position %d, want %d", event.Output.GetPosition(), position)
			}
			for len(data) > 0 {
				for len(log) > 0 && log[0].position+int64(len(log[0].data)) <= position {
					log = log[1:]
				}
				if len(log) == 0 {
					return fmt.Errorf("more output than at first, at position %d", position)
				}
				want := log[0].data[position-log[0].position:]
				n := min(len(want), len(data))
				if event.Output.GetStream() != log[0].stream || !bytes.Equal(data[:n], want[:n]) {
					return fmt.Errorf("other output than at first, at position %d", position)
				}
				data, position = data[n:], position+int64(n)
				t.bytes.Add(int64(n))
			}
		}
	}
	if end := p.Exit().GetPosition(); position != end {
		return fmt.Errorf("the output ended at %d, want %d", position, end)
	}
	return nil
}
