package oci

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

var bootID = sync.OnceValues(func() (string, error) {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(data)), err
})

// FindProcess identifies a running process.
func FindProcess(pid int) (Process, error) {
	boot, err := bootID()
	if err != nil {
		return Process{}, err
	}
	stat, err := readStat(pid)
	if err != nil {
		return Process{}, err
	}
	if stat.exited() {
		return Process{}, fmt.Errorf("process %d: %w", pid, unix.ESRCH)
	}
	return Process{PID: pid, Start: stat.start, Boot: boot}, nil
}

// Alive reports whether it still runs. A zombie does not.
func (p Process) Alive() bool {
	if p.PID == 0 || !p.ThisBoot() {
		return false
	}
	stat, err := readStat(p.PID)
	return err == nil && stat.start == p.Start && !stat.exited()
}

// procStat is the content of /proc/PID/stat, as far as it matters here.
type procStat struct {
	state  byte
	parent int
	start  uint64           // clock ticks after boot
	status *unix.WaitStatus // meaningful for a zombie only; nil: not shown
}

func (s procStat) exited() bool { return s.state == 'Z' || s.state == 'X' || s.state == 'x' }

func readStat(pid int) (procStat, error) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return procStat{}, err
	}
	return parseStat(data)
}

// parseStat reads /proc/PID/stat. The name in parentheses may contain anything,
// blanks and parentheses included.
func parseStat(data []byte) (s procStat, err error) {
	end := bytes.LastIndexByte(data, ')')
	if end < 0 {
		return s, errors.New("stat without a name")
	}
	fields := bytes.Fields(data[end+1:])
	const stateField, parentField, startField, statusField = 0, 1, 19, 49
	if len(fields) <= startField || len(fields[stateField]) != 1 {
		return s, errors.New("stat is too short")
	}
	s.state = fields[stateField][0]
	if s.state < 'A' || s.state > 'z' || 'Z' < s.state && s.state < 'a' {
		return s, errors.New("stat with an invalid state")
	}
	if s.parent, err = strconv.Atoi(string(fields[parentField])); err != nil {
		return s, err
	}
	if s.start, err = strconv.ParseUint(string(fields[startField]), 10, 64); err != nil {
		return s, err
	}
	if len(fields) > statusField {
		if status, err := strconv.ParseUint(string(fields[statusField]), 10, 32); err == nil {
			exit := unix.WaitStatus(status)
			s.status = &exit
		}
	}
	return s, nil
}

// Kill kills the process and returns when it has exited. Killing the first
// process of a pid namespace kills all others; it exits last.
func (p Process) Kill(ctx context.Context) error {
	if p.PID == 0 {
		return nil
	}
	w, err := watch(p.PID)
	if err != nil || w == nil {
		return err
	}
	defer w.close()
	// The pid may have been used again, even before it was opened.
	if stat, err := readStat(p.PID); err != nil || stat.start != p.Start || !p.ThisBoot() {
		return nil
	}
	if err := w.kill(); err != nil {
		return fmt.Errorf("kill %d: %w", p.PID, err)
	}
	if err := w.wait(ctx); err != nil {
		return fmt.Errorf("process %d does not exit: %w", p.PID, err)
	}
	return nil
}

// ThisBoot reports whether the machine was not restarted since.
func (p Process) ThisBoot() bool {
	boot, err := bootID()
	return err == nil && boot == p.Boot
}

// EndedOtherwise reports whether the process is a zombie that did not exit by
// this signal.
func (p Process) EndedOtherwise(s unix.Signal) bool {
	stat, err := readStat(p.PID)
	return err == nil && stat.start == p.Start && stat.exited() && stat.status != nil && stat.status.Signal() != s
}

// ReadPID reads a pid file.
func ReadPID(path string) (int, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(data)))
}
