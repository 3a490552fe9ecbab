package fault

import (
	"fmt"
	"runtime/debug"
)

// PanicError is a panic that Catch turned into an error.
type PanicError struct {
	Value any
	Stack []byte // of the goroutine that panicked
}

// Error returns the value of the panic, without the stack.
func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

// Catch calls f and returns its error. If f panics, Catch returns a PanicError.
// Every goroutine that serves a call must run its work through Catch: a panic
// that leaves a goroutine ends the agent, and with it the sandbox.
func Catch(f func() error) (err error) {
	defer func() {
		switch v := recover().(type) {
		case nil:
		case *PanicError: // of another goroutine
			err = v
		default:
			err = &PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	return f()
}
