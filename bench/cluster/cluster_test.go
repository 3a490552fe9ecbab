package cluster

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConnectWithoutACluster(t *testing.T) {
	t.Setenv("KUBECONFIG", "")
	if _, err := Connect("test-"); !errors.Is(err, ErrNone) {
		t.Errorf("Connect: %v, want ErrNone", err)
	}
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	if _, err := Connect("test-"); err == nil || errors.Is(err, ErrNone) {
		t.Errorf("with a file that is not there: %v", err)
	}
}

func TestWait(t *testing.T) {
	asked := 0
	err := Wait(t.Context(), "it", func() (bool, error) { asked++; return asked == 3, nil })
	if err != nil || asked != 3 {
		t.Errorf("asked %d times, then %v", asked, err)
	}
	trouble := errors.New("trouble")
	err = Wait(t.Context(), "it", func() (bool, error) { return false, trouble })
	if !errors.Is(err, trouble) || !strings.HasPrefix(err.Error(), "it: ") {
		t.Errorf("an error of what is asked: %v", err)
	}
	over := errors.New("over")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(over)
	if err := Wait(ctx, "it", func() (bool, error) { return false, nil }); !errors.Is(err, over) {
		t.Errorf("with an ended context: %v", err)
	}
}

// TestServeSaysWhyAServerEnded: it does not wait for one that is gone.
func TestServeSaysWhyAServerEnded(t *testing.T) {
	dir := t.TempDir()
	binary := filepath.Join(dir, "sandgate")
	if err := os.WriteFile(binary, []byte("#!/bin/sh\necho \"no such flag as $1\" >&2\nexit 2\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err := Serve(ctx, Order{Binary: binary, Directory: dir, Provider: "kubernetes"})
	if err == nil || !strings.Contains(err.Error(), "no such flag as serve") || ctx.Err() != nil {
		t.Errorf("Serve: %v", err)
	}
}
