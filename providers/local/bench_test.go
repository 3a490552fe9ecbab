//go:build linux

package local_test

import (
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/local"
	"github.com/sandgate/sandgate/providers/providertest"
)

// BenchmarkCreate measures a creation, its deletion left out, against the
// yardstick in turns, so that both meet the same machine: the runtime running
// the same configuration by hand, with a program that ends at once.
func BenchmarkCreate(b *testing.B) {
	for _, transport := range []local.Transport{local.TransportSocket, local.TransportExec} {
		b.Run(string(transport), func(b *testing.B) {
			p := benchProvider(b, transport)
			spec := providers.Spec{Hash: "h", Network: providers.NetworkNone, Resources: local.DefaultResources()}
			plain := spec
			plain.Resources.DiskBytes = 0
			if _, err := providertest.Create(b.Context(), p, "plain", plain); err != nil {
				b.Fatal(err)
			}
			bundle := local.BundleCopy(b, p, "plain", "/bin/true")
			root := b.TempDir()
			var creates, yardsticks []time.Duration
			for b.Loop() {
				began := time.Now()
				out, err := exec.CommandContext(b.Context(), "runc", "--root", root, "run", "--bundle", bundle, "yardstick").CombinedOutput()
				if err != nil {
					b.Fatalf("%v: %s", err, out)
				}
				yardsticks = append(yardsticks, time.Since(began))
				began = time.Now()
				if _, err := providertest.Create(b.Context(), p, "bench", spec); err != nil {
					b.Fatal(err)
				}
				creates = append(creates, time.Since(began))
				if err := p.Delete(b.Context(), "bench", providers.Condition{}); err != nil {
					b.Fatal(err)
				}
			}
			if err := p.Delete(b.Context(), "plain", providers.Condition{}); err != nil {
				b.Fatal(err)
			}
			create, yardstick := median(creates), median(yardsticks)
			b.ReportMetric(float64(create.Microseconds())/1000, "ms/create")
			b.ReportMetric(float64(yardstick.Microseconds())/1000, "ms/runc-run")
			b.ReportMetric(float64(create)/float64(yardstick), "x-runc-run")
		})
	}
}

// BenchmarkCreateInAUserNamespace measures a creation with a user namespace and one
// without, in turns, whatever the runtime's version is.
func BenchmarkCreateInAUserNamespace(b *testing.B) {
	p := benchProvider(b, local.TransportSocket)
	spec := providers.Spec{Hash: "h", Network: providers.NetworkNone, Resources: local.DefaultResources()}
	var took [2][]time.Duration
	for b.Loop() {
		for i, with := range []bool{false, true} {
			local.UseNamespaces(p, with)
			began := time.Now()
			if _, err := providertest.Create(b.Context(), p, "bench", spec); err != nil {
				b.Fatal(err)
			}
			took[i] = append(took[i], time.Since(began))
			if err := p.Delete(b.Context(), "bench", providers.Condition{}); err != nil {
				b.Fatal(err)
			}
		}
	}
	without, with := median(took[0]), median(took[1])
	b.ReportMetric(float64(without.Microseconds())/1000, "ms/without")
	b.ReportMetric(float64(with.Microseconds())/1000, "ms/with")
	b.ReportMetric(float64((with-without).Microseconds())/1000, "ms/more")
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

func benchProvider(b *testing.B, transport local.Transport) *local.Provider {
	b.Helper()
	if os.Geteuid() != 0 {
		b.Skip("needs root and runc: not root")
	}
	dir, err := os.MkdirTemp("", "sandgate-local-")
	if err != nil {
		b.Fatal(err)
	}
	config := local.Config{
		StateDir: dir, Agent: agentAt(agentFile(b)), CgroupParent: "/" + filepath.Base(dir), Transport: transport,
		Logger: slog.New(slog.DiscardHandler),
	}
	p, err := local.New(b.Context(), config)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := p.Close(); err != nil {
			b.Error(err)
		}
		sweep(b, config)
	})
	return p
}
