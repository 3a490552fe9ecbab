// Package auditlog implements the command that reads audit logs, over their rotations.
package auditlog

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/sandgate/sandgate/server/audit"
)

// recordFilter selects audit records. An empty field selects all.
type recordFilter struct {
	since, until                                         time.Time
	tenant, principal, method, sandbox, request, outcome string
	phases                                               []string
}

// matches reports whether the filter selects r.
func (f recordFilter) matches(r audit.Line) bool {
	for _, c := range []struct{ want, got string }{
		{f.tenant, r.Tenant}, {f.principal, r.Principal}, {f.method, r.Operation},
		{f.sandbox, r.SandboxID}, {f.request, r.RequestID},
	} {
		if c.want != "" && c.want != c.got {
			return false
		}
	}
	if !f.since.IsZero() && r.Time.Before(f.since) || !f.until.IsZero() && r.Time.After(f.until) {
		return false
	}
	return matchesPhase(f.phases, r.Phase) && matchesOutcome(f.outcome, r)
}

func matchesPhase(phases []string, phase audit.Phase) bool {
	for _, p := range phases {
		if p == string(phase) {
			return true
		}
	}
	return len(phases) == 0
}

// matchesOutcome compares with the code, the reason or the exit reason. "failed" is
// any code but OK.
func matchesOutcome(want string, r audit.Line) bool {
	switch want {
	case "":
		return true
	case "failed":
		return r.Code != "" && r.Code != "OK"
	}
	return strings.EqualFold(want, r.Code) || strings.EqualFold(want, r.Reason) || strings.EqualFold(want, r.ExitReason)
}

// NewCommand returns the command "audit". It reads defaultFile unless it is given another.
func NewCommand(defaultFile string) *cobra.Command {
	var filter recordFilter
	var since, until string
	follow := false
	cmd := &cobra.Command{
		Use:   "audit [flags] [FILE]",
		Short: "Read and filter the server's audit log",
		Long: `Audit prints the records of the server's audit log, also of its rotated files,
oldest first. FILE is that of --audit-file, or "-" for standard input. With
--output json it prints the lines as the server wrote them.`,
		Example: `  sandgate audit --sandbox build-42
  sandgate audit --since 24h --outcome failed
  sandgate audit --since 2026-03-01T00:00:00Z --method Execute --output json
  sandgate audit --tenant search --follow`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if filter.since, err = moment("since", since); err != nil {
				return err
			}
			if filter.until, err = moment("until", until); err != nil {
				return err
			}
			for _, p := range filter.phases {
				if p != string(audit.Started) && p != string(audit.Ended) && p != string(audit.Refused) {
					return fmt.Errorf("--phase is started, ended or refused, not %q; see: %s --help", p, cmd.CommandPath())
				}
			}
			path := defaultFile
			if len(args) > 0 {
				path = args[0]
			}
			output, _ := cmd.Flags().GetString("output")
			p := &printer{filter: filter, json: output == "json", out: cmd.OutOrStdout()}
			err = p.read(cmd.Context(), path, follow, cmd.InOrStdin())
			if p.unreadable > 0 {
				fmt.Fprintf(cmd.ErrOrStderr(), "%d lines are not audit records and were left out\n", p.unreadable)
			}
			return err
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&since, "since", "", "only records since this time (RFC 3339), or this long ago, such as 2h")
	flags.StringVar(&until, "until", "", "only records until this time, or this long ago")
	flags.StringVar(&filter.tenant, "tenant", "", "only records of this tenant")
	flags.StringVar(&filter.principal, "principal", "", "only records of this principal")
	flags.StringVar(&filter.method, "method", "", "only records of this operation, such as Execute")
	flags.StringVar(&filter.sandbox, "sandbox", "", "only records of the sandbox with this id")
	flags.StringVar(&filter.request, "request-id", "", "only records of the call with this id")
	flags.StringVar(&filter.outcome, "outcome", "", `only records with this code, reason or exit reason, such as OK or TIMED_OUT; "failed" for all codes but OK`)
	flags.StringSliceVar(&filter.phases, "phase", nil, "only records of these phases: started, ended, refused")
	flags.BoolVarP(&follow, "follow", "f", false, "go on with records as they are written, over rotations")
	return cmd
}

// moment parses a time, or a duration before now.
func moment(flag, text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if ago, err := time.ParseDuration(text); err == nil {
		return time.Now().Add(-ago), nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return at, fmt.Errorf("--%s is a time such as 2026-03-01T12:00:00Z or a duration such as 2h, not %q", flag, text)
	}
	return at, nil
}

// tableRows is after how many rows the widths of a table's columns are set anew. The
// table holds no more than that, whatever the size of the log.
const tableRows = 1000

// printer prints the records that its filter selects.
type printer struct {
	filter     recordFilter
	json       bool
	out        io.Writer
	table      *tabwriter.Writer
	rows       int // that the table holds
	unreadable int
}

// read prints the records of path and of its rotated files.
func (p *printer) read(ctx context.Context, path string, follow bool, stdin io.Reader) error {
	line := func(raw []byte) error {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		return p.line(raw)
	}
	// Columns of a table that grows have fixed widths.
	if !p.json && !follow {
		p.table = tabwriter.NewWriter(p.out, 0, 0, 2, ' ', 0)
		p.out = p.table
	}
	if !p.json {
		if err := p.row("TIME", "PHASE", "TENANT", "PRINCIPAL", "METHOD", "SANDBOX", "WHAT", "OUTCOME"); err != nil {
			return err
		}
	}
	err := p.files(ctx, path, follow, stdin, line)
	if p.table != nil {
		if flushed := p.table.Flush(); err == nil {
			err = flushed
		}
	}
	return err
}

func (p *printer) files(ctx context.Context, path string, follow bool, stdin io.Reader, line func([]byte) error) error {
	if path == "-" {
		return readAll(stdin, line)
	}
	if follow {
		return followFile(ctx, path, line)
	}
	files, err := rotatedFiles(path)
	if err != nil {
		return err
	}
	if _, err := os.Stat(path); err != nil && len(files) == 1 {
		return err
	}
	for _, file := range files {
		if err := readFile(file, line); err != nil {
			return err
		}
	}
	return nil
}

// line prints one line of the log if the filter selects it.
func (p *printer) line(raw []byte) error {
	text := strings.TrimSpace(string(raw))
	if text == "" {
		return nil
	}
	r, err := audit.ParseLine([]byte(text))
	if err != nil {
		p.unreadable++
		return nil
	}
	if !p.filter.matches(r) {
		return nil
	}
	if p.json {
		_, err := fmt.Fprintln(p.out, text)
		return err
	}
	return p.row(r.Time.UTC().Format("2006-01-02T15:04:05.000Z"), string(r.Phase), r.Tenant, r.Principal, r.Operation, r.SandboxID, what(r), outcome(r))
}

func (p *printer) row(cells ...string) error {
	for i, c := range cells {
		if c == "" {
			c = "-"
		}
		// A caller's text must not steer the terminal.
		if strings.ContainsFunc(c, func(r rune) bool { return !unicode.IsPrint(r) }) {
			c = strconv.Quote(c)
		}
		cells[i] = c
	}
	if _, err := fmt.Fprintln(p.out, strings.Join(cells, "\t")); err != nil || p.table == nil {
		return err
	}
	if p.rows++; p.rows < tableRows {
		return nil
	}
	p.rows = 0
	return p.table.Flush()
}

// what returns what a record is about beside its sandbox.
func what(r audit.Line) string {
	parts := make([]string, 0, 4)
	for _, part := range []string{r.ExecID, r.Program, r.CommandText, r.Path, r.Destination, r.Target, r.Address, r.Template, r.Image} {
		if part != "" {
			parts = append(parts, part)
		}
	}
	return strings.Join(parts, " ")
}

// outcome returns how a call, and its command, ended.
func outcome(r audit.Line) string {
	text := r.Code
	if r.Reason != "" {
		text += " " + r.Reason
	}
	if r.ExitReason != "" {
		text += ", " + r.ExitReason
		if r.ExitCode != nil {
			text += " " + strconv.Itoa(int(*r.ExitCode))
		}
	}
	return text
}
