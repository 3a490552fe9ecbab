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
	start, state, err := readStat(pid)
	if err != nil {
		return Process{}, err
	}
	if ended(state) {
		return Process{}, fmt.Errorf("process %d: %w", pid, unix.ESRCH)
	}
	return Process{PID: pid, Start: start, Boot: boot}, nil
}

// Alive reports whether it still runs. A zombie does not.
func (p Process) Alive() bool {
	if p.PID == 0 || !p.ThisBoot() {
		return false
	}
	start, state, err := readStat(p.PID)
	return err == nil && start == p.Start && !ended(state)
}

func ended(state byte) bool { return state == 'Z' || state == 'X' || state == 'x' }

// readStat returns when a process started and its state.
func readStat(pid int) (start uint64, state byte, err error) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, 0, err
	}
	return parseStat(data)
}

// parseStat reads /proc/PID/stat. The name in parentheses may hold anything,
// blanks and parentheses included.
func parseStat(data []byte) (start uint64, state byte, err error) {
	end := bytes.LastIndexByte(data, ')')
	if end < 0 {
		return 0, 0, errors.New("stat without a name")
	}
	fields := bytes.Fields(data[end+1:])
	const stateField, startField = 0, 19
	if len(fields) <= startField || len(fields[stateField]) != 1 {
		return 0, 0, errors.New("stat is too short")
	}
	state = fields[stateField][0]
	if state < 'A' || state > 'z' || 'Z' < state && state < 'a' {
		return 0, 0, errors.New("stat with an invalid state")
	}
	start, err = strconv.ParseUint(string(fields[startField]), 10, 64)
	return start, state, err
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
	if start, _, err := readStat(p.PID); err != nil || start != p.Start || !p.ThisBoot() {
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
	data, err := os.ReadFile("/proc/" + strconv.Itoa(p.PID) + "/stat")
	if err != nil {
		return false
	}
	start, state, err := parseStat(data)
	if err != nil || start != p.Start || !ended(state) {
		return false
	}
	fields := bytes.Fields(data[bytes.LastIndexByte(data, ')')+1:])
	const exitField = 49
	if len(fields) <= exitField {
		return false
	}
	status, err := strconv.ParseUint(string(fields[exitField]), 10, 32)
	return err == nil && unix.WaitStatus(status).Signal() != s
}

// ReadPID reads a pid file.
func ReadPID(path string) (int, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(data)))
}
