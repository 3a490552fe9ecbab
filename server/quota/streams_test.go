package quota

import (
	"testing"
	"time"
)

func TestStreams(t *testing.T) {
	s := NewStreams(Config{Tenant: Limits{MaxStreams: 2}, Principal: Limits{CommandsPerMinute: 2}})
	now := time.Now()
	s.now = func() time.Time { return now }
	a, b := Owner{"one", "a"}, Owner{"one", "b"}
	enter := func(o Owner) func() {
		t.Helper()
		leave, err := s.Enter(o, true)
		if err != nil {
			t.Fatal(err)
		}
		return leave
	}
	first, second := enter(a), enter(b)
	if _, err := s.Enter(b, false); !isBeyond(err, maxStreams, "tenant") {
		t.Errorf("a third stream: %v", err)
	}
	enter(Owner{"two", "a"})()
	first()
	enter(a)()
	if _, err := s.Enter(a, true); !isBeyond(err, commandsPerMinute, "principal") {
		t.Errorf("a third command: %v", err)
	}
	if used := s.used(a, commandsPerMinute); used != 2 {
		t.Errorf("used %d", used)
	}
	now = now.Add(30 * time.Second)
	enter(a)()
	second()
	now = now.Add(time.Hour)
	enter(a)()
	now = now.Add(time.Minute)
	enter(b)()
	if len(s.running) != 0 {
		t.Errorf("left: %v", s.running)
	}
}
