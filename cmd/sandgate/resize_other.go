//go:build !unix

package main

import "os"

// resizes returns nil: this system has no signal for a resize.
func resizes() (<-chan os.Signal, func()) { return nil, func() {} }
