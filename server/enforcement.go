package server

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"github.com/sandgate/sandgate/providers"
)

// enforcement returns the protections as the provider knows them now.
func (s *Server) enforcement() []providers.Enforcement {
	if v, ok := s.provider.(providers.Verifier); ok {
		return v.Enforcement()
	}
	return s.described.Enforcement
}

// logMissing logs each protection that the provider does not enforce here.
func logMissing(log *slog.Logger, d providers.Description) {
	for _, e := range d.Enforcement {
		if !e.Enforced {
			log.Warn("a protection is not enforced", "protection", e.Name, "reason", e.Detail)
		}
	}
}

// requireLimits returns an error if the provider does not enforce a limit.
func requireLimits(d providers.Description) error {
	var missing []error
	for _, name := range []string{"memory", "cpu", "processes", "disk", "network"} {
		held, detail := false, "the provider does not report it"
		for _, e := range d.Enforcement {
			if e.Name == name {
				held, detail = e.Enforced, e.Detail
			}
		}
		if !held {
			missing = append(missing, fmt.Errorf("%w, and the provider does not enforce %s: %s", ErrLimits, name, detail))
		}
	}
	return errors.Join(missing...)
}

// requireTemplateLimits returns an error if templates leave resources without a
// limit.
func requireTemplateLimits(unlimited map[string][]string) error {
	var missing []error
	for _, name := range slices.Sorted(maps.Keys(unlimited)) {
		missing = append(missing, fmt.Errorf("template %q: no limit of %s: %w", name, strings.Join(unlimited[name], ", "), ErrLimits))
	}
	return errors.Join(missing...)
}
