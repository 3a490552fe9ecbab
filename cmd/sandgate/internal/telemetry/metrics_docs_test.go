package telemetry

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

var (
	descName    = regexp.MustCompile(`^Desc\{fqName: "([a-z0-9_]+)"`)
	pageMetric  = regexp.MustCompile("`(sandgate_[a-z0-9_]+)")
	metricsRows = regexp.MustCompile(`(?s)\n\| metric \|.*?\n\n`)
)

// docs/operations.md has a row for each of the server's metrics, and for no other.
func TestMetricsAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := make(map[string]bool)
	for _, m := range pageMetric.FindAllStringSubmatch(string(metricsRows.Find(page)), -1) {
		documented[m[1]] = true
	}
	h := startTraced(t)
	descs := make(chan *prometheus.Desc)
	go func() {
		h.server.Registry().Describe(descs)
		close(descs)
	}()
	seen := 0
	for d := range descs {
		name := descName.FindStringSubmatch(d.String())
		if name == nil || !strings.HasPrefix(name[1], "sandgate_") {
			continue
		}
		seen++
		if !documented[name[1]] {
			t.Errorf("docs/operations.md lacks %s", name[1])
		}
		delete(documented, name[1])
	}
	if seen < 30 || len(documented) > 0 {
		t.Errorf("%d metrics; documented and not there: %v", seen, documented)
	}
}
