package docker

import (
	"slices"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
)

// A helper that a crashed server has left is too young to be told from one in use when the
// next server starts. It goes once it is old.
func TestOldHelpersAreRemovedWhileAServerRuns(t *testing.T) {
	fake := &fakeDaemon{}
	p := open(t, fakeConfig(t, fake))
	closeLater(t, p)
	fake.mu.Lock()
	for name, age := range map[string]time.Duration{"sandgate-helper-old": 2 * time.Hour, "sandgate-helper-new": time.Minute, "other": 2 * time.Hour} {
		fake.containers[name] = &fakeContainer{id: name, created: time.Now().Add(-age), config: &container.Config{}}
	}
	fake.mu.Unlock()
	p.sweep(t.Context())
	if got, want := fake.names(), []string{"other", "sandgate-helper-new"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
