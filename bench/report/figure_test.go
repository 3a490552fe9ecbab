package report_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sandgate/sandgate/bench/report"
)

// A quantile is a sample; at most its share of the samples is below, and at least its
// share is not above.
func TestQuantile(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var samples report.Samples
		for _, d := range rapid.SliceOfN(rapid.Int64Range(0, 50), 1, 300).Draw(t, "samples") {
			samples = append(samples, time.Duration(d))
		}
		q := rapid.Float64Range(0, 1).Draw(t, "q")
		got := samples.Quantile(q)
		below, equal := 0, 0
		for _, d := range samples {
			switch {
			case d < got:
				below++
			case d == got:
				equal++
			}
		}
		share := q * float64(len(samples))
		if equal == 0 || float64(below) > share || float64(below+equal) < share {
			t.Fatalf("%v: %d below, %d equal of %d", got, below, equal, len(samples))
		}
	})
	for q, want := range map[float64]time.Duration{0: 1, 0.5: 51, 0.99: 100, 1: 100} {
		var samples report.Samples
		for i := range 100 {
			samples = append(samples, time.Duration(100-i))
		}
		if got := samples.Quantile(q); got != want {
			t.Errorf("%g: %d, want %d", q, got, want)
		}
	}
	if got := (report.Samples{}).Median(); got != 0 {
		t.Errorf("of nothing: %v", got)
	}
}
