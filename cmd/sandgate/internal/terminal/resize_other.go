//go:build !unix

package terminal

import "os"

// Resizes returns nil: this system has no signal for a resize.
func Resizes() (<-chan os.Signal, func()) { return nil, func() {} }
