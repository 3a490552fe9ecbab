package e2e

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// wallClock sets the wall clock of one running process, and of nothing else on the
// machine: it replaces the function of the kernel's vDSO from which Go reads its clocks.
// The process gets a copy of that page, since it is private.
type wallClock struct {
	t   *testing.T
	pid int
	at  int64 // the function's address
}

// readClock is clock_gettime by a system call, which adds to CLOCK_REALTIME the seconds
// at offsetAt.
var readClock = []byte{
	0xb8, unix.SYS_CLOCK_GETTIME, 0, 0, 0, // mov eax, SYS_clock_gettime
	0x0f, 0x05, // syscall
	0x85, 0xff, // test edi, edi
	0x75, 0x0d, // jne: another clock
	0x48, 0xb9, 0, 0, 0, 0, 0, 0, 0, 0, // mov rcx, seconds
	0x48, 0x01, 0x0e, // add [rsi], rcx
	0xc3, // ret
}

const offsetAt = 13

// wallClockOf finds the vDSO of a process.
func wallClockOf(t *testing.T, pid int) *wallClock {
	t.Helper()
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		t.Fatal(err)
	}
	var from, to int64
	for line := range strings.Lines(string(maps)) {
		if strings.HasSuffix(strings.TrimSpace(line), "[vdso]") {
			if _, err := fmt.Sscanf(line, "%x-%x", &from, &to); err != nil {
				t.Fatal(err)
			}
		}
	}
	memory, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		t.Fatal(err)
	}
	defer memory.Close()
	image := make([]byte, to-from)
	if _, err := memory.ReadAt(image, from); err != nil {
		t.Fatalf("the vDSO at %x: %v", from, err)
	}
	file, err := elf.NewFile(bytes.NewReader(image))
	if err != nil {
		t.Fatal(err)
	}
	symbols, err := file.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range symbols {
		if s.Name == "__vdso_clock_gettime" && int(s.Size) >= len(readClock) {
			return &wallClock{t: t, pid: pid, at: from + int64(s.Value)}
		}
	}
	t.Fatalf("no clock in the vDSO: %v", symbols)
	return nil
}

// set makes the wall clock differ from the machine's.
func (c *wallClock) set(by time.Duration) {
	c.t.Helper()
	code := slices.Clone(readClock)
	binary.LittleEndian.PutUint64(code[offsetAt:], uint64(int64(by/time.Second)))
	memory, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", c.pid), os.O_RDWR, 0)
	if err != nil {
		c.t.Fatal(err)
	}
	defer memory.Close()
	defer func() {
		if err := unix.Kill(c.pid, unix.SIGCONT); err != nil {
			c.t.Fatal(err)
		}
	}()
	eventually(c.t, 30*time.Second, "a moment in which no thread reads the clock", func() bool {
		if err := unix.Kill(c.pid, unix.SIGSTOP); err != nil {
			c.t.Fatal(err)
		}
		if !c.aside() {
			_ = unix.Kill(c.pid, unix.SIGCONT)
			return false
		}
		_, err := memory.WriteAt(code, c.at)
		if err != nil {
			c.t.Fatal(err)
		}
		return true
	})
}

// aside reports whether all threads have stopped, and none of them in the code that
// set replaces.
func (c *wallClock) aside() bool {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", c.pid))
	if err != nil || len(threads) == 0 {
		c.t.Fatal(threads, err)
	}
	for _, thread := range threads {
		status, err := os.ReadFile(filepath.Join(thread, "stat"))
		if err != nil {
			return false
		}
		_, state, _ := strings.Cut(string(status), ") ")
		calls, err := os.ReadFile(filepath.Join(thread, "syscall"))
		if err != nil || !strings.HasPrefix(state, "T") {
			return false
		}
		var at int64
		fields := strings.Fields(string(calls))
		if _, err := fmt.Sscanf(fields[len(fields)-1], "0x%x", &at); err != nil || at >= c.at && at < c.at+int64(len(readClock)) {
			return false
		}
	}
	return true
}
