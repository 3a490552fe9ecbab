package report

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// Row is one measurement, on a bench of type B.
type Row[B any] struct {
	Name string
	Run  func(ctx context.Context, b B) ([]Figure, error)
}

// CannotRun is why a row is left out, which is no failure.
type CannotRun struct{ Reason string }

func (e *CannotRun) Error() string { return e.Reason }

// Print runs the rows whose names contain a text, and prints what they find as
// soon as it is there. Rows that fail do not keep the others from running. A text
// that no name contains is an error that says the names.
func Print[B any](ctx context.Context, w io.Writer, b B, only string, rows []Row[B]) error {
	if err := find(only, rows); err != nil {
		return err
	}
	began := time.Now()
	var failed, notes []string
	line(w, "what | beside", "sandgate", "theirs", "ratio", "must", "goal", "verdict")
	for _, r := range rows {
		if !strings.Contains(r.Name, only) {
			continue
		}
		figures, err := r.Run(ctx, b)
		for _, f := range figures {
			line(w, f.What, f.Ours, f.Theirs, f.ratio(), f.Must.text, f.Goal.text, f.verdict())
			if f.Note != "" {
				notes = append(notes, f.What+": "+f.Note)
			}
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		var cannot *CannotRun
		switch {
		case errors.As(err, &cannot):
			notes = append(notes, r.Name+" was left out: "+cannot.Reason)
		case err != nil:
			notes = append(notes, r.Name+" failed: "+err.Error())
			failed = append(failed, r.Name)
		}
	}
	for _, note := range notes {
		fmt.Fprintln(w, "-", note)
	}
	fmt.Fprintf(w, "took %v; load average %s\n", time.Since(began).Round(time.Second), LoadAverage())
	if len(failed) > 0 {
		return fmt.Errorf("rows failed: %s", strings.Join(failed, ", "))
	}
	return nil
}

// find returns an error when no row is called that.
func find[B any](only string, rows []Row[B]) error {
	names := make([]string, 0, len(rows))
	for _, r := range rows {
		if strings.Contains(r.Name, only) {
			return nil
		}
		names = append(names, r.Name)
	}
	return fmt.Errorf("no row is called %q; there are %s", only, strings.Join(names, ", "))
}

func line(w io.Writer, what, ours, theirs, ratio, must, goal, verdict string) {
	fmt.Fprintln(w, strings.TrimRight(fmt.Sprintf("%-66s %12s %12s %9s %8s %8s  %s", what, ours, theirs, ratio, must, goal, verdict), " "))
}

// LoadAverage tells how busy the machine was: over 1, 5 and 15 minutes.
func LoadAverage() string {
	data, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	return strings.Join(strings.Fields(string(data))[:3], " ")
}
