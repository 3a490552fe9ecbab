//go:build linux

package main

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// table holds the results: a line for each measurement, a column for each number of
// sandboxes.
type table struct {
	provider string
	columns  []string
	lines    []string
	cells    map[string]map[string]string
	// over lists the exceeded bounds, without those of another program.
	over   []string
	others bool
}

// atMost checks a count against a bound. Counts, unlike times, are the same on every
// machine.
func (t *table) atMost(what string, got, most int) {
	if got > most && !t.others {
		t.over = append(t.over, fmt.Sprintf("%s at %s: %d, at most %d", what, t.columns[len(t.columns)-1], got, most))
	}
}

// column begins the next one.
func (t *table) column(name string) { t.columns = append(t.columns, name) }

// set writes into the last column.
func (t *table) set(line, format string, args ...any) {
	if t.cells == nil {
		t.cells = map[string]map[string]string{}
	}
	if t.cells[line] == nil {
		t.cells[line] = map[string]string{}
		t.lines = append(t.lines, line)
	}
	t.cells[line][t.columns[len(t.columns)-1]] = fmt.Sprintf(format, args...)
}

func (t *table) print(w io.Writer) {
	fmt.Fprintf(w, "\n| %s | %s |\n|---|%s\n", t.provider, strings.Join(t.columns, " | "), strings.Repeat("---:|", len(t.columns)))
	for _, line := range t.lines {
		fmt.Fprintf(w, "| %s |", line)
		for _, column := range t.columns {
			cell := t.cells[line][column]
			if cell == "" {
				cell = "–"
			}
			fmt.Fprintf(w, " %s |", cell)
		}
		fmt.Fprintln(w)
	}
	fmt.Fprintln(w)
}

func short(d time.Duration) string {
	switch {
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
	case d < 10*time.Second:
		return fmt.Sprintf("%.0f ms", float64(d)/float64(time.Millisecond))
	default:
		return fmt.Sprintf("%.1f s", d.Seconds())
	}
}

func size(bytes int64) string {
	switch {
	case bytes < 10<<10:
		return fmt.Sprintf("%.1f KiB", float64(bytes)/(1<<10))
	case bytes < 10<<20:
		return fmt.Sprintf("%d KiB", bytes>>10)
	default:
		return fmt.Sprintf("%d MiB", bytes>>20)
	}
}
