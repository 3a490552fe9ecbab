package fake_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/fake"
	"github.com/sandgate/sandgate/providers/providertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const isolatesNothing = "a fake isolates nothing"

func TestConformance(t *testing.T) {
	dir, err := os.MkdirTemp("", "sg")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	m := fake.NewMachine(dir, fake.Config{})
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	except := map[string]string{}
	for _, name := range []string{
		"C24_not_root", "C24_no_network", "C24_loopback", "C24_no_host_files", "C24_no_namespaces_of_its_own",
		"C24_read_only_system", "C24_writable_places", "C24_python", "C24_fork_bomb", "C24_no_process_left", "C24_memory_hog", "C24_disk_hog",
	} {
		except[name] = isolatesNothing
	}
	providertest.Run(t, providertest.Harness{
		Open:   func(*testing.T) providers.Provider { return m.Open() },
		Spec:   func() providers.Spec { return providers.Spec{Network: providers.NetworkNone} },
		Except: except,
	})
}
