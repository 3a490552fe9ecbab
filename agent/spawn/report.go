package spawn

import (
	"errors"
	"fmt"
	"io"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

var errNoReport = errors.New("no report")

// ErrSupervisorLost is returned by ReadEnd if the supervisor died before the command,
// and wrapped by Start if it died before it started the command.
var ErrSupervisorLost = errors.New("spawn: the supervisor is gone")

// readReport reads one report. It returns errNoReport after the last one.
func readReport(read func([]byte) (int, error)) (report, error) {
	var r report
	buf := (*[unsafe.Sizeof(r)]byte)(unsafe.Pointer(&r))[:]
	for {
		n, err := read(buf)
		switch {
		case errors.Is(err, unix.EINTR):
		case n == 0 && (err == nil || errors.Is(err, io.EOF)):
			return r, errNoReport
		case err != nil:
			return r, fmt.Errorf("read report: %w", err)
		case n != reportLen:
			return r, fmt.Errorf("read report: %d bytes", n)
		default:
			return r, nil
		}
	}
}

// ReadEnd reads how the leader ended from the supervisor's reports. It returns false
// while there is no such report. If no descendant is left, the supervisor is Exiting
// and sends no more reports.
func (p *Process) ReadEnd() (End, bool, error) {
	r, err := readReport(func(b []byte) (int, error) { return unix.Read(p.Reports, b) })
	switch {
	case errors.Is(err, unix.EAGAIN):
		return End{}, false, nil
	case errors.Is(err, errNoReport):
		return End{}, false, ErrSupervisorLost
	case err != nil:
		return End{}, false, err
	case r.kind == reportExiting:
		p.exiting = true
	case r.kind != reportExited:
		return End{}, false, nil
	}
	return End{
		Status: syscall.WaitStatus(r.value),
		User:   time.Duration(r.user) * time.Microsecond,
		System: time.Duration(r.system) * time.Microsecond,
		MaxRSS: r.maxRSS << 10,
	}, true, nil
}

// Wait reaps a child of the agent without blocking. It returns false while the child
// runs, and an error if pid is not a child of the agent.
func Wait(pid int) (End, bool, error) {
	var status unix.WaitStatus
	var usage unix.Rusage
	for {
		got, err := unix.Wait4(pid, &status, unix.WNOHANG, &usage)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return End{}, false, fmt.Errorf("wait for %d: %w", pid, err)
		case got == 0:
			return End{}, false, nil
		}
		return EndOf(status, &usage), true, nil
	}
}

// EndOf converts the results of wait4.
func EndOf(status unix.WaitStatus, usage *unix.Rusage) End {
	return End{
		Status: syscall.WaitStatus(status),
		User:   time.Duration(usage.Utime.Nano()),
		System: time.Duration(usage.Stime.Nano()),
		MaxRSS: usage.Maxrss << 10,
	}
}
