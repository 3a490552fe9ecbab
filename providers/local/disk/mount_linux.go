package disk

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// WithPrivateMounts runs do on a thread with a mount namespace of its own. Only
// processes started there see the mounts made there, which vanish with the last
// of these processes.
func WithPrivateMounts(do func() error) error {
	done := make(chan error, 1)
	go enter(do, done)
	return <-done
}

func enter(do func() error, done chan<- error) {
	// The thread is never unlocked, so it ends with the goroutine and nothing
	// else runs on it.
	runtime.LockOSThread()
	if unix.Gettid() == os.Getpid() {
		// The main thread cannot exit, and /proc/self shows its namespace.
		inner := make(chan error, 1)
		go enter(do, inner)
		done <- <-inner
		runtime.UnlockOSThread()
		return
	}
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
		done <- fmt.Errorf("make a mount namespace: %w", err)
		return
	}
	if err := unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		done <- fmt.Errorf("make mounts private: %w", err)
		return
	}
	done <- do()
}

// Mount mounts a loop device. Its content does not outlive a crash of the
// machine, so it never waits for the disk below.
func Mount(dev, dir string) error {
	err := unix.Mount(dev, dir, "ext4", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOATIME, "nobarrier,noinit_itable,discard")
	if err != nil {
		return fmt.Errorf("mount %s: %w", dev, err)
	}
	return nil
}

// canMount returns why this process cannot make mount namespaces and loop
// devices, or nil.
func canMount() error {
	err := WithPrivateMounts(func() error { return nil })
	if _, statErr := os.Stat("/dev/loop-control"); statErr != nil {
		err = errors.Join(err, statErr)
	}
	return err
}
