//go:build !unix

package server

// refused is never certain here, so no socket is taken for a stale one.
func refused(error) bool { return false }
