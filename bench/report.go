package main

import (
	"fmt"
	"io"
	"slices"
	"time"
)

// figure is one line of the report: what we do, beside its yardstick.
type figure struct {
	what      string
	ours      string
	yardstick string
	// ratio is ours to the yardstick, and 0 where there is none.
	ratio float64
	must  bound
	goal  bound
}

// bound is a target for a ratio (or for a figure without yardstick).
type bound struct {
	value float64
	// atLeast is true where more is better.
	atLeast bool
	text    string
}

func atMost(v float64) bound { return bound{value: v, text: fmt.Sprintf("≤ %.2g×", v)} }
func atLeast(v float64) bound {
	return bound{value: v, atLeast: true, text: fmt.Sprintf("≥ %.2g×", v)}
}

func (b bound) holds(v float64) bool {
	if b.atLeast {
		return v >= b.value
	}
	return v <= b.value
}

const lineFormat = "%-44s %14s %14s %8s %9s %9s  %s\n"

func printHeader(w io.Writer) {
	fmt.Fprintf(w, lineFormat, "what", "sandgate", "yardstick", "ratio", "must", "goal", "verdict")
}

func (f figure) print(w io.Writer) {
	ratio := "-"
	if f.ratio > 0 {
		ratio = fmt.Sprintf("%.2f×", f.ratio)
	}
	fmt.Fprintf(w, lineFormat, f.what, f.ours, f.yardstick, ratio, f.must.text, f.goal.text, f.verdict())
}

func (f figure) verdict() string {
	switch {
	case f.must.text == "":
		return ""
	case f.ratio == 0:
		return "not measured"
	case f.goal.text != "" && f.goal.holds(f.ratio):
		return "goal"
	case f.must.holds(f.ratio):
		return "holds"
	default:
		return "MISSED"
	}
}

// samples are durations of one thing.
type samples []time.Duration

// quantile returns the q-quantile by the nearest rank.
func (s samples) quantile(q float64) time.Duration {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s))
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

func (s samples) median() time.Duration { return s.quantile(0.5) }

// latency compares two sets of samples by their q-quantiles.
func latency(what string, ours, yardstick samples, q float64, must, goal bound) figure {
	a, b := ours.quantile(q), yardstick.quantile(q)
	return figure{
		what: what, ours: milliseconds(a), yardstick: milliseconds(b),
		ratio: float64(a) / float64(b), must: must, goal: goal,
	}
}

// throughput compares the medians of two sets of times for the same bytes.
func throughput(what string, bytes int64, ours, yardstick samples, must, goal bound) figure {
	a, b := rate(bytes, ours.median()), rate(bytes, yardstick.median())
	return figure{
		what: what, ours: megabytes(a), yardstick: megabytes(b),
		ratio: a / b, must: must, goal: goal,
	}
}

func rate(bytes int64, d time.Duration) float64 { return float64(bytes) / d.Seconds() }

func milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.2f ms", float64(d)/float64(time.Millisecond))
}

func megabytes(bytesPerSecond float64) string { return fmt.Sprintf("%.0f MB/s", bytesPerSecond/1e6) }
