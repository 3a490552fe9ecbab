package serve

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestSetTimerSlack(t *testing.T) {
	slacks := func() map[string]int {
		got := make(map[string]int)
		threads, _ := filepath.Glob("/proc/self/task/[0-9]*")
		for _, thread := range threads {
			if value, err := os.ReadFile("/proc/" + filepath.Base(thread) + "/timerslack_ns"); err == nil {
				got[strings.TrimSpace(string(value))]++
			}
		}
		return got
	}
	defer setTimerSlack(50_000)
	setTimerSlack(50_000)
	if got := slacks(); len(got) != 1 || got["50000"] == 0 {
		t.Skipf("needs CAP_SYS_NICE; threads by slack: %v", got)
	}
	setTimerSlack(coarseSlack)
	if got := slacks(); len(got) != 1 || got["1000000"] == 0 {
		t.Errorf("threads by slack: %v", got)
	}
}
