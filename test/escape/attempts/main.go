// Command attempts tries to break out of the sandbox that it runs in. It prints
// a line of JSON for each attempt: what it tried and what the kernel answered.
// Nothing that it tries destroys anything where it succeeds.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// attempt is one thing that must not succeed.
type attempt struct {
	family, name string
	try          func() error
	// want are the errors of a refusal. Any other outcome is a finding.
	want []unix.Errno
}

// outcome is what is printed of an attempt.
type outcome struct {
	Family string   `json:"family"`
	Name   string   `json:"name"`
	Got    string   `json:"got"` // "ok", or the error's name
	Want   []string `json:"want"`
	Held   bool     `json:"held"`
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == "child" {
		os.Exit(0) // what a new namespace's process runs
	}
	encoder := json.NewEncoder(os.Stdout)
	for _, a := range slices.Concat(namespaces(), mounts(), devices(), sockets(), kernel(), processes(), identity(), files()) {
		if err := encoder.Encode(a.run()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

// run tries on a thread of its own, which ends with the attempt: what the thread
// gained is gone then.
func (a attempt) run() outcome {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		done <- a.try()
	}()
	err := <-done
	o := outcome{Family: a.family, Name: a.name, Got: "ok"}
	for _, e := range a.want {
		o.Want = append(o.Want, unix.ErrnoName(e))
		o.Held = o.Held || errors.Is(err, e)
	}
	if err != nil {
		o.Got = err.Error()
		if e := unix.Errno(0); errors.As(err, &e) {
			o.Got = unix.ErrnoName(e)
		}
	}
	return o
}

// family makes the attempts of one family, which share the errors of a refusal.
type family struct {
	name string
	want []unix.Errno
	all  []attempt
}

func (f *family) add(name string, try func() error, want ...unix.Errno) {
	if len(want) == 0 {
		want = f.want
	}
	f.all = append(f.all, attempt{f.name, name, try, want})
}

// call is a system call as an attempt. A result that is not -1 is a success.
func call(number uintptr, args ...uintptr) func() error {
	return func() error {
		var a [6]uintptr
		copy(a[:], args)
		result, _, errno := unix.Syscall6(number, a[0], a[1], a[2], a[3], a[4], a[5])
		if errno != 0 {
			return errno
		}
		if number != unix.SYS_OPEN_TREE && number != unix.SYS_FSOPEN {
			return nil
		}
		return unix.Close(int(result))
	}
}

// opened is an attempt to open a file.
func opened(path string, flags int) func() error {
	return func() error {
		fd, err := unix.Open(path, flags|unix.O_CLOEXEC|unix.O_NONBLOCK, 0o600)
		if err != nil {
			return err
		}
		return unix.Close(fd)
	}
}

// spawned is an attempt to start a process in new namespaces.
func spawned(flags uintptr) func() error {
	return func() error {
		pid, err := syscall.ForkExec("/proc/self/exe", []string{"attempts", "child"}, &syscall.ProcAttr{
			Sys: &syscall.SysProcAttr{Cloneflags: flags},
		})
		if err != nil {
			return err
		}
		_, err = syscall.Wait4(pid, nil, 0, nil)
		return err
	}
}
