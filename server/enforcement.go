package server

import (
	"log/slog"

	"github.com/sandgate/sandgate/providers"
)

// logMissing logs each protection that the provider does not enforce here.
func logMissing(log *slog.Logger, d providers.Description) {
	for _, e := range d.Enforcement {
		if !e.Enforced {
			log.Warn("a protection is not enforced", "protection", e.Name, "reason", e.Detail)
		}
	}
}
