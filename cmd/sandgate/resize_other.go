//go:build !unix

package main

import "os"

// resizes never tells anything: there is no signal for it here.
func resizes() (<-chan os.Signal, func()) { return nil, func() {} }
