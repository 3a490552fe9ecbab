//go:build linux

package main

import (
	"fmt"
	"math/rand/v2"
	"syscall"
	"time"
)

// Paths in a sandbox.
const (
	writerPath = "/workspace/writer"
	ranPath    = "/workspace/ran"
)

// Kinds of jobs.
const (
	jobRun    = iota // write and end
	jobReplay        // the same, then read again from somewhere in the middle
	jobDetach        // the same, detached and attached again
	jobEcho          // send standard input and read it back
	jobTimeout
	jobKill
	jobCancel // cancel, which must kill
	jobCopy   // upload and download
	jobKindCount
)

// names are the kinds' names in messages.
var names = [jobKindCount]string{"run", "replay", "detach", "echo", "timeout", "kill", "cancel", "copy"}

// job is one task and its expected result. The seed and the number determine both.
type job struct {
	number         uint64
	kind           int
	seed           uint64
	stdout, stderr int64
	pause          time.Duration
	code           int
	signal         syscall.Signal
	timeout        time.Duration
	chance         *rand.Rand // for choices during the job
}

func newJob(seed, number uint64) *job {
	chance := rand.New(rand.NewPCG(seed, number))
	j := &job{number: number, seed: chance.Uint64(), chance: chance}
	j.kind = []int{
		jobRun, jobRun, jobRun, jobRun, jobRun, jobRun, jobReplay, jobReplay, jobReplay, jobDetach, jobDetach,
		jobEcho, jobEcho, jobEcho, jobTimeout, jobKill, jobCancel, jobCopy, jobCopy, jobCopy,
	}[chance.IntN(20)]
	j.stdout, j.stderr = size(chance, 2<<20), size(chance, 256<<10)
	j.pause = []time.Duration{0, 100 * time.Microsecond, time.Millisecond, 10 * time.Millisecond}[chance.IntN(4)]
	if j.pause >= time.Millisecond {
		// It should last for a few cuts, not for minutes.
		j.stdout, j.stderr = min(j.stdout, 512<<10), min(j.stderr, 64<<10)
	}
	switch chance.IntN(4) {
	case 0:
		j.signal = []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL, syscall.SIGHUP}[chance.IntN(3)]
	case 1:
		j.code = chance.IntN(255)
	}
	switch j.kind {
	case jobTimeout, jobKill, jobCancel:
		j.stdout, j.pause = -1, 10*time.Millisecond
		j.timeout = time.Duration(between(chance, 2e8, 2e9))
	case jobEcho:
		j.stderr = 0
	case jobCopy:
		j.stdout = size(chance, 6<<20)
	}
	return j
}

// size draws a number of bytes: of every order of magnitude, or none.
func size(chance *rand.Rand, limit int64) int64 {
	if chance.IntN(10) == 0 {
		return 0
	}
	return int64(between(chance, 1, float64(limit)))
}

func (j *job) String() string {
	return fmt.Sprintf("job %d (%s, %d and %d bytes, pause %s, code %d, signal %d, time %s)",
		j.number, names[j.kind], j.stdout, j.stderr, j.pause, j.code, j.signal, j.timeout)
}

// id is the unique text that the command records when it runs; also its exec id.
func (j *job) id() string { return fmt.Sprintf("chaos-%d", j.number) }

// argv returns the command; write is the number of bytes that it writes to stdout.
func (j *job) argv(write int64, more ...string) []string {
	return append([]string{
		writerPath, "-id", j.id(), "-ran", ranPath, "-seed", fmt.Sprint(j.seed),
		"-stdout", fmt.Sprint(write), "-stderr", fmt.Sprint(j.stderr), "-pause", j.pause.String(),
		"-code", fmt.Sprint(j.code), "-signal", fmt.Sprint(int(j.signal)),
	}, more...)
}
