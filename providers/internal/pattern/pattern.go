// Package pattern checks the patterns of names that operators list in options.
package pattern

import (
	"fmt"
	"path"

	"github.com/sandgate/sandgate/providers"
)

// Check returns an error for the first that path.Match cannot use. It wraps
// ErrInvalid.
func Check(patterns []string) error {
	for _, p := range patterns {
		if _, err := path.Match(p, ""); err != nil {
			return fmt.Errorf("%q is no pattern: a [ must have its ], and nothing may end in \\: %w", p, providers.ErrInvalid)
		}
	}
	return nil
}
