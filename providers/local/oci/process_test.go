//go:build linux

package oci

import (
	"os"
	"testing"
	"unicode"
)

func FuzzParseStat(f *testing.F) {
	f.Add([]byte("42 (a) b) S 1 42 42 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 12345 1 1"))
	f.Add([]byte(") S"))
	f.Add([]byte(")\x00 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if stat, err := parseStat(data); err == nil && !unicode.IsLetter(rune(stat.state)) {
			t.Errorf("%q has the state %q and no error", data, stat.state)
		}
	})
}

func TestParseStat(t *testing.T) {
	stat, err := parseStat([]byte("42 (a) R 1) Z 1 42 42 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 12345 1 1"))
	if err != nil || stat.start != 12345 || stat.parent != 1 || stat.state != 'Z' || stat.status != nil {
		t.Errorf("%+v, %v", stat, err)
	}
	me, err := FindProcess(os.Getpid())
	if err != nil || !me.Alive() {
		t.Errorf("this process: %+v, %v", me, err)
	}
	me.Start++
	if me.Alive() {
		t.Error("another process with the same pid is taken for it")
	}
}
