// Package report is what the benchmarks print: figures beside those of others,
// with bounds for the ratio.
package report

import (
	"fmt"
	"slices"
	"time"
)

// Figure is one line: what we do, beside what others do.
type Figure struct {
	What   string
	Ours   string
	Theirs string
	// Ratio is ours to theirs, and 0 where there is none. Without Theirs it is the
	// figure that Must and Goal are about.
	Ratio float64
	Must  Bound
	Goal  Bound
	// Note is printed below the table.
	Note string
}

// Bound is a target for a ratio. The zero value is none.
type Bound struct {
	value float64
	// atLeast is true where more is better.
	atLeast bool
	text    string
}

// AtMost holds up to v.
func AtMost(v float64) Bound { return Bound{value: v, text: fmt.Sprintf("≤ %.3g×", v)} }

// AtLeast holds from v on.
func AtLeast(v float64) Bound {
	return Bound{value: v, atLeast: true, text: fmt.Sprintf("≥ %.3g×", v)}
}

// Part holds up to 1/n.
func Part(n int) Bound { return Bound{value: 1 / float64(n), text: fmt.Sprintf("≤ 1/%d", n)} }

// UpTo holds up to v, for a figure that is no ratio.
func UpTo(v float64, unit string) Bound {
	return Bound{value: v, text: fmt.Sprintf("≤ %g %s", v, unit)}
}

func (b Bound) holds(v float64) bool {
	if b.atLeast {
		return v >= b.value
	}
	return v <= b.value
}

func (f Figure) ratio() string {
	switch {
	case f.Ratio <= 0 || f.Theirs == "":
		return "-"
	case f.Ratio < 0.1:
		return fmt.Sprintf("1/%.0f", 1/f.Ratio)
	default:
		return fmt.Sprintf("%.2f×", f.Ratio)
	}
}

func (f Figure) verdict() string {
	switch {
	case f.Must.text == "" && f.Goal.text == "":
		return ""
	case f.Ratio == 0:
		return "not measured"
	case f.Goal.text != "" && f.Goal.holds(f.Ratio):
		return "goal"
	case f.Must.text == "":
		return "goal missed"
	case f.Must.holds(f.Ratio):
		return "holds"
	default:
		return "MISSED"
	}
}

// Samples are durations of one thing.
type Samples []time.Duration

// Quantile returns the q-quantile by the nearest rank.
func (s Samples) Quantile(q float64) time.Duration {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s))
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

// Median is the quantile in the middle.
func (s Samples) Median() time.Duration { return s.Quantile(0.5) }

// Latency compares two sets of samples by their q-quantiles.
func Latency(what string, ours, theirs Samples, q float64, must, goal Bound) Figure {
	a, b := ours.Quantile(q), theirs.Quantile(q)
	return Figure{
		What: what, Ours: Milliseconds(a), Theirs: Milliseconds(b),
		Ratio: float64(a) / float64(b), Must: must, Goal: goal,
	}
}

// Throughput compares the medians of two sets of times for the same bytes.
func Throughput(what string, bytes int64, ours, theirs Samples, must, goal Bound) Figure {
	a, b := Rate(bytes, ours.Median()), Rate(bytes, theirs.Median())
	return Figure{What: what, Ours: Megabytes(a), Theirs: Megabytes(b), Ratio: a / b, Must: must, Goal: goal}
}

// Rate is in bytes per second.
func Rate(bytes int64, d time.Duration) float64 { return float64(bytes) / d.Seconds() }

// Milliseconds shows a duration.
func Milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.2f ms", float64(d)/float64(time.Millisecond))
}

// Megabytes shows a rate.
func Megabytes(bytesPerSecond float64) string { return fmt.Sprintf("%.0f MB/s", bytesPerSecond/1e6) }
