package main

import (
	"fmt"
	"io"
	"slices"
	"time"
)

// figure is one line of the report: what we do, beside what others do.
type figure struct {
	what   string
	ours   string
	theirs string
	// ratio is ours to theirs, and 0 where there is none.
	ratio float64
	must  bound
	goal  bound
	// note is printed below the table.
	note string
}

// bound is a target for a ratio.
type bound struct {
	value float64
	// atLeast is true where more is better.
	atLeast bool
	text    string
}

func atMost(v float64) bound { return bound{value: v, text: fmt.Sprintf("≤ %.3g×", v)} }
func atLeast(v float64) bound {
	return bound{value: v, atLeast: true, text: fmt.Sprintf("≥ %.3g×", v)}
}

// part is at most 1/n.
func part(n int) bound { return bound{value: 1 / float64(n), text: fmt.Sprintf("≤ 1/%d", n)} }

func (b bound) holds(v float64) bool {
	if b.atLeast {
		return v >= b.value
	}
	return v <= b.value
}

const lineFormat = "%-66s %12s %12s %9s %8s %8s  %s\n"

func printHeader(w io.Writer) {
	fmt.Fprintf(w, lineFormat, "what | beside", "sandgate", "theirs", "ratio", "must", "goal", "verdict")
}

func (f figure) print(w io.Writer) {
	ratio := "-"
	if f.ratio > 0 {
		ratio = fmt.Sprintf("%.2f×", f.ratio)
	}
	if f.ratio > 0 && f.ratio < 0.1 {
		ratio = fmt.Sprintf("1/%.0f", 1/f.ratio)
	}
	fmt.Fprintf(w, lineFormat, f.what, f.ours, f.theirs, ratio, f.must.text, f.goal.text, f.verdict())
}

func (f figure) verdict() string {
	switch {
	case f.must.text == "" && f.goal.text == "":
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
func latency(what string, ours, theirs samples, q float64, must, goal bound) figure {
	a, b := ours.quantile(q), theirs.quantile(q)
	return figure{
		what: what, ours: milliseconds(a), theirs: milliseconds(b),
		ratio: float64(a) / float64(b), must: must, goal: goal,
	}
}

// throughput compares the medians of two sets of times for the same bytes.
func throughput(what string, bytes int64, ours, theirs samples, must, goal bound) figure {
	a, b := float64(bytes)/ours.median().Seconds(), float64(bytes)/theirs.median().Seconds()
	return figure{
		what: what, ours: megabytes(a), theirs: megabytes(b),
		ratio: a / b, must: must, goal: goal,
	}
}

func milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.2f ms", float64(d)/float64(time.Millisecond))
}

func megabytes(bytesPerSecond float64) string { return fmt.Sprintf("%.0f MB/s", bytesPerSecond/1e6) }
