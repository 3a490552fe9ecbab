package fault

import (
	"fmt"
	"runtime/debug"
)

// Catch calls f and turns a panic into an error. Goroutines that no interceptor
// covers run their work through it.
func Catch(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = Panic(p)
		}
	}()
	return f()
}

// Panic returns the error for a recovered panic, with the goroutine's stack.
func Panic(p any) error { return fmt.Errorf("panic: %v\n%s", p, debug.Stack()) }
