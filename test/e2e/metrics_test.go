package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// watched are the flags of a server whose metrics a test reads.
func watched(dir string) []string { return []string{"--admin-listen", "unix://" + adminSocket(dir)} }

func adminSocket(dir string) string { return filepath.Join(dir, "admin.sock") }

// scraper reads the metrics of a server over one connection, as Prometheus does.
type scraper struct{ http.Client }

func (s *server) scraper() *scraper {
	socket := adminSocket(s.dir)
	return &scraper{http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", socket)
		},
	}}}
}

// page returns a page of the admin listener.
func (s *scraper) page(path string) (int, string, error) {
	resp, err := s.Get("http://sandgate" + path)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text), err
}

// value returns the sum of the series whose names and labels begin with a text.
func (s *scraper) value(t *testing.T, series string) float64 {
	t.Helper()
	status, text, err := s.page("/metrics")
	if err != nil || status != http.StatusOK {
		t.Fatalf("metrics: %d, %v, %.500s", status, err, text)
	}
	sum := 0.0
	for line := range strings.Lines(text) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok || name != series && !strings.HasPrefix(name, series+"{") {
			continue
		}
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			t.Fatal(line, err)
		}
		sum += n
	}
	return sum
}

// await waits until a series has at least a value.
func (s *scraper) await(t *testing.T, series string, least float64) {
	t.Helper()
	eventually(t, time.Minute, fmt.Sprintf("%s of at least %g", series, least), func() bool { return s.value(t, series) >= least })
}
