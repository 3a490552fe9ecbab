package threads

import (
	"math"
	"os"
	"path/filepath"
	"testing"
)

// threadsOf counts this process's threads.
func threadsOf(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func TestStartKeepsThreads(t *testing.T) {
	const n = 40
	start(n)
	if got := threadsOf(t); got < n {
		t.Errorf("%d threads after %d were started", got, n)
	}
	before := threadsOf(t)
	start(n)
	// The runtime itself may start a few.
	if got := threadsOf(t); got > before+n/4 {
		t.Errorf("%d threads, and then %d: idle ones were not used", before, got)
	}
}

func TestLimit(t *testing.T) {
	for name, c := range map[string]struct {
		files []string
		want  int
	}{
		"none":        {nil, math.MaxInt},
		"no limit":    {[]string{"max\n"}, math.MaxInt},
		"a limit":     {[]string{"128\n"}, 128},
		"the least":   {[]string{"128\n", "64\n"}, 64},
		"no number":   {[]string{"\n", "x"}, math.MaxInt},
		"one of them": {[]string{"max\n", "16\n"}, 16},
	} {
		t.Run(name, func(t *testing.T) {
			files := []string{"/no/such/file"}
			for i, text := range c.files {
				files = append(files, filepath.Join(t.TempDir(), string(rune('a'+i))))
				if err := os.WriteFile(files[i+1], []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if got := limit(files); got != c.want {
				t.Errorf("%d, want %d", got, c.want)
			}
		})
	}
}
