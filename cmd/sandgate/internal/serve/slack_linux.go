package serve

import (
	"os"
	"strconv"
	"strings"
)

// coarseSlack is the timer slack of the server's threads, in nanoseconds.
const coarseSlack = 1_000_000

const maxSlackPasses = 8

// setTimerSlack sets the timer slack of all threads of this process, and so of
// those that they start. Without CAP_SYS_NICE it leaves the other threads as they are.
//
// Go's monitor thread sleeps 20 µs at a time, and an idle thread 3 µs before it
// looks for work again. With the kernel's slack of 50 µs these are wake-ups every
// 80 µs that take the processor from a call in progress; with 1 ms they coincide
// with others. Timers fire up to 1 ms late. Children inherit the slack: runc, and
// the agent, which resets it for commands.
func setTimerSlack(nanoseconds int) {
	value := strconv.Itoa(nanoseconds)
	// A thread that has not been reached yet may start another: until a pass finds
	// none to change. A thread with a realtime policy keeps a slack of 0, so the
	// passes are bounded.
	for pass, changed := 0, true; changed && pass < maxSlackPasses; pass++ {
		changed = false
		threads, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return
		}
		for _, thread := range threads {
			file := "/proc/" + thread.Name() + "/timerslack_ns"
			now, err := os.ReadFile(file)
			if err != nil || strings.TrimSpace(string(now)) == value {
				continue // the thread has ended, or has it
			}
			if err := os.WriteFile(file, []byte(value), 0); err != nil {
				return
			}
			changed = true
		}
	}
}
