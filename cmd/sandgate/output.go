package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// json reports whether the output is JSON.
func (c *cli) json() bool { return c.output == "json" }

// message prints a message of the API as one JSON object. Equal messages give equal
// text: protojson alone varies its spaces.
func (c *cli) message(m proto.Message) error {
	raw, err := protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(m)
	if err != nil {
		return fmt.Errorf("print as JSON: %w", err)
	}
	return c.object(json.RawMessage(raw))
}

// object prints a value as one JSON object.
func (c *cli) object(v any) error {
	encoder := json.NewEncoder(c.stdout)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	return encoder.Encode(v)
}

// table prints rows below a heading, in columns.
func table(w io.Writer, heading []string, rows [][]string) error {
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	for _, row := range append([][]string{heading}, rows...) {
		if _, err := fmt.Fprintln(t, strings.Join(row, "\t")); err != nil {
			return err
		}
	}
	return t.Flush()
}

// list prints a table, or with quiet only the ids, which are its first column.
func (c *cli) list(quiet bool, heading []string, rows [][]string) error {
	if !quiet {
		return table(c.stdout, heading, rows)
	}
	for _, row := range rows {
		if _, err := fmt.Fprintln(c.stdout, row[0]); err != nil {
			return err
		}
	}
	return nil
}

// facts prints names and values, and omits names without a value.
func facts(w io.Writer, pairs ...string) error {
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] == "" {
			continue
		}
		if _, err := fmt.Fprintf(t, "%s:\t%s\n", pairs[i], pairs[i+1]); err != nil {
			return err
		}
	}
	return t.Flush()
}

// ago prints the time since t.
func ago(t *timestamppb.Timestamp) string {
	if t == nil {
		return "-"
	}
	return span(time.Since(t.AsTime()))
}

// until prints the time until t.
func until(t *timestamppb.Timestamp) string {
	if t == nil {
		return "never"
	}
	return "in " + span(time.Until(t.AsTime()))
}

// span prints a duration in its one or two largest units.
func span(d time.Duration) string {
	d = max(d, 0)
	day := 24 * time.Hour
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < 10*time.Minute:
		return fmt.Sprintf("%dm%ds", d/time.Minute, d%time.Minute/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < day:
		return fmt.Sprintf("%dh%dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%dd%dh", d/day, d%day/time.Hour)
}

// stamp prints a time and how long ago it was.
func stamp(t *timestamppb.Timestamp) string {
	if t == nil {
		return ""
	}
	return t.AsTime().Local().Format(time.RFC3339) + " (" + ago(t) + " ago)"
}

// lasting prints a duration of the API.
func lasting(d *durationpb.Duration, none string) string {
	if d == nil {
		return none
	}
	text := d.AsDuration().String()
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(text, zero) {
			text = strings.TrimSuffix(text, zero[1:])
		}
	}
	return text
}

// size prints a number of bytes.
func size(n int64) string {
	if n == 0 {
		return ""
	}
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	value, unit := float64(n), 0
	for value >= 1024 && unit < len(units)-1 {
		value, unit = value/1024, unit+1
	}
	return strings.TrimSuffix(fmt.Sprintf("%.1f", value), ".0") + " " + units[unit]
}

// pairs prints a map in the order of its keys.
func pairs(m map[string]string) string {
	var parts []string
	for _, key := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, key+"="+m[key])
	}
	return strings.Join(parts, ",")
}

// word prints the value of an enum without its prefix, in lower case.
func word(value fmt.Stringer, prefix string) string {
	return strings.ToLower(strings.TrimPrefix(value.String(), prefix))
}
