package agent

import (
	"testing"
	"time"

	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
)

// The idle time begins with the end of the last command, and there is none while
// a command runs.
func TestIdleTime(t *testing.T) {
	h := start(t, setup{})
	activity := func() (running int32, idle time.Duration) {
		t.Helper()
		reply, err := h.GetActivity(testContext(t), &agentv1.GetActivityRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return reply.GetRunningCommands(), reply.GetIdleTime().AsDuration()
	}
	eventually(t, "the agent is idle for 50 ms", func() bool { _, idle := activity(); return idle >= 50*time.Millisecond })
	g := newGate(t)
	ended := make(chan result, 1)
	go func() { ended <- h.run(t, shell("cat "+string(g))) }()
	eventually(t, "a command runs", func() bool { n, _ := activity(); return n == 1 })
	if n, idle := activity(); n != 1 || idle != 0 {
		t.Errorf("%d commands run, idle for %v", n, idle)
	}
	begun := time.Now()
	g.open(t)
	<-ended
	eventually(t, "no command runs", func() bool { n, _ := activity(); return n == 0 })
	if _, idle := activity(); idle > time.Since(begun) {
		t.Errorf("idle for %v, %v after the command's end", idle, time.Since(begun))
	}
}
