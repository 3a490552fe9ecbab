package main

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"
)

func TestRlimits(t *testing.T) {
	for _, v := range []string{"", "7", "7=", "x=1", "7=1x", "7=-1", "99=1"} {
		if err := (rlimits{}).Set(v); err == nil {
			t.Errorf("%q was accepted", v)
		}
	}
	// No test of this process needs core files.
	if err := (rlimits{}).Set(fmt.Sprintf("%d=0", unix.RLIMIT_CORE)); err != nil {
		t.Fatal(err)
	}
	var got unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_CORE, &got); err != nil || got != (unix.Rlimit{}) {
		t.Errorf("the limit is %+v, %v", got, err)
	}
}
