//go:build linux

package cgroup

import (
	"path/filepath"
	"testing"
)

func FuzzParseProcs(f *testing.F) {
	f.Add([]byte("0\n1\n2\n300\n"))
	f.Add([]byte("-1\n\n99999999999999999999\n7"))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, pid := range parseProcs(data) {
			// kill(0), kill(-1) and kill(1) would end others than a sandbox.
			if pid <= 1 {
				t.Errorf("%q: process %d", data, pid)
			}
		}
	})
}

func FuzzParseCounter(f *testing.F) {
	f.Add([]byte("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"))
	f.Add([]byte("oom_kill -3\n"))
	f.Add([]byte("oom_kill 3 4\noom_kill\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if n := parseCounter(data, "oom_kill"); n < 0 {
			t.Errorf("%q: %d", data, n)
		}
	})
}

// FuzzGroupName: the name of a sandbox's group below the parent leads back to
// that group and nowhere else.
func FuzzGroupName(f *testing.F) {
	c := Groups{parent: "/sandgate", prefix: "0a1b2c3d-", unified: root}
	f.Add("0a1b2c3d-sg-abc")
	f.Add("0a1b2c3d-pool.t.00ff")
	f.Add("0a1b2c3d-..")
	f.Add("0a1b2c3d-a/../../b")
	f.Add("0a1b2c3d-")
	f.Fuzz(func(t *testing.T, group string) {
		name, own := c.nameOf(group)
		if !own {
			return
		}
		if got := c.Path(name); got != filepath.Join(c.parent, group) || filepath.Dir(got) != c.parent {
			t.Errorf("%q is %q", group, got)
		}
		if filepath.Dir(filepath.Join("/state", name)) != "/state" {
			t.Errorf("%q is a path outside of the state directory's", name)
		}
	})
}

func TestParseCounter(t *testing.T) {
	for data, want := range map[string]int64{"oom_kill_disable 0\nunder_oom 0\noom_kill 3\n": 3, "oom_kill x\n": 0, "": 0, "oom 4\n": 0} {
		if got := parseCounter([]byte(data), "oom_kill"); got != want {
			t.Errorf("%q: %d, want %d", data, got, want)
		}
	}
}
