package conformance

import "context"

// T receives the results of a case. A *testing.T is one.
type T interface {
	Helper()
	Logf(format string, args ...any)
	// Errorf fails the case, which goes on.
	Errorf(format string, args ...any)
	// Fatalf fails the case and ends it. It must be called from the goroutine that
	// runs the case.
	Fatalf(format string, args ...any)
	// Skipf ends the case as one that cannot hold here.
	Skipf(format string, args ...any)
	Failed() bool
	// Cleanup is called after the case, the last one first.
	Cleanup(f func())
	// Context ends just before what Cleanup was given is called.
	Context() context.Context
}
