// Package disk gives each sandbox a file system of its own, and mounts what a
// sandbox sees.
package disk

import "fmt"

const (
	// MinSize is the smallest disk with which a sandbox starts.
	MinSize = 16 << 20
	// MaxSize is a file size that every file system supports which may hold the
	// state directory.
	MaxSize = 8 << 40

	unit = 1 << 20
)

// RoundUp rounds a size up to one of eight between a power of two and the next.
// Callers choose sizes freely, and each size needs a template.
func RoundUp(size int64) int64 {
	step := int64(unit)
	for size > 16*step {
		step *= 2
	}
	return (size + step - 1) / step * step
}

// FormatBytes formats a size, for example "1.5 GiB".
func FormatBytes(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%d MiB", n>>20)
	default:
		return fmt.Sprintf("%d bytes", n)
	}
}
