package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestADriverThatDoesNotComeBack: its late answer must not be taken for another.
func TestADriverThatDoesNotComeBack(t *testing.T) {
	interpreter := filepath.Join(t.TempDir(), "interpreter")
	script := "#!/bin/sh\nwhile read -r work; do case $work in\n" +
		"quick) echo '{\"seconds\": 0.5}' ;;\nbroken) echo '{\"error\": \"no such thing\"}' ;;\nesac; done\n"
	if err := os.WriteFile(interpreter, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	d, err := drive(interpreter, "backend", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	if took, err := d.do(t.Context(), "quick", time.Minute); err != nil || took != 500*time.Millisecond {
		t.Errorf("quick: %v, %v", took, err)
	}
	if _, err := d.do(t.Context(), "broken", time.Minute); err == nil || err.Error() != "no such thing" {
		t.Errorf("broken: %v", err)
	}
	if _, err := d.do(t.Context(), "slow", 10*time.Millisecond); err == nil || !strings.Contains(err.Error(), "no end within") {
		t.Errorf("slow: %v", err)
	}
	if _, err := d.do(t.Context(), "quick", time.Minute); err == nil || !strings.Contains(err.Error(), `"slow"`) {
		t.Errorf("after it: %v", err)
	}
}
