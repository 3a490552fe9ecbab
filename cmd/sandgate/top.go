package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	sandgate "github.com/sandgate/sandgate/clients/go"
	"github.com/sandgate/sandgate/cmd/sandgate/internal/terminal"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// topCalls bounds the calls that top makes at the same time.
const topCalls = 8

func (c *cli) topCommand() *cobra.Command {
	var labels []string
	once, commands := false, false
	every := 2 * time.Second
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show sandboxes, their commands and the pools, and keep showing them",
		Long: `Show the sandboxes of your tenant, those with the latest activity first, and the
server's pools. The view fits the terminal and is drawn again until Ctrl-C.

With --commands it also shows running commands and the output per second. To list
the commands of a sandbox is a use of it: while this runs, no idle lifetime ends.

With credentials of the role operator, --tenant shows another tenant's.`,
		Example: `  sandgate top
  sandgate top --commands
  sandgate top --once --label team=search
  sandgate --tenant search top`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if every < 100*time.Millisecond {
				return usage(cmd, "--interval is at least 100ms, not %s", every)
			}
			request, err := selection(cmd, labels, nil)
			if err != nil {
				return err
			}
			return c.with(cmd, func(ctx context.Context, client *sandgate.Client) error {
				v := viewer{client: client, request: request, commands: commands}
				if v.server, err = client.ServerInfo(ctx); err != nil {
					return err
				}
				return c.top(ctx, v, once, every)
			})
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&once, "once", false, "print one view of everything and end, for scripts")
	flags.BoolVar(&commands, "commands", false, "list running commands too, which renews idle lifetimes")
	flags.DurationVar(&every, "interval", every, "time between two views")
	flags.StringArrayVarP(&labels, "label", "l", nil, "only sandboxes with this label KEY=VALUE (repeatable: all must match)")
	return cmd
}

// top prints views until ctx ends.
func (c *cli) top(ctx context.Context, v viewer, once bool, every time.Duration) error {
	screen := terminal.Open(c.stdin, c.stdout)
	if !once && (!screen.Shows() || c.json()) {
		return errors.New("standard output is not a terminal, or --output json was given; use --once")
	}
	before, err := v.look(ctx)
	if err != nil {
		return err
	}
	if once {
		// Rates need two views.
		select {
		case <-time.After(min(every, time.Second)):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		now, err := v.look(ctx)
		if err != nil {
			return err
		}
		if c.json() {
			return c.object(now.rows(before))
		}
		return now.print(c.stdout, before)
	}
	const clear, home, rest, hide, show = "\x1b[2J", "\x1b[H", "\x1b[J", "\x1b[?25l", "\x1b[?25h"
	if _, err := io.WriteString(c.stdout, hide+clear); err != nil {
		return err
	}
	defer func() { _, _ = io.WriteString(c.stdout, show+"\n") }()
	resized, stop := terminal.Resizes()
	defer stop()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for now, past := before, before; ; {
		var view bytes.Buffer
		if err := now.print(&view, past); err != nil {
			return err
		}
		size := screen.Size()
		if _, err := io.WriteString(c.stdout, home+fit(view.String(), int(size.GetRows()), int(size.GetColumns()))+rest); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-resized:
			if _, err := io.WriteString(c.stdout, clear); err != nil {
				return err
			}
		case <-tick.C:
			next, err := v.look(ctx)
			if ctx.Err() != nil {
				return nil
			}
			if err != nil {
				return err
			}
			now, past = next, now
		}
	}
}

// fit cuts a text to the lines and columns of a terminal. Each line ends with an
// instruction to clear what was there.
func fit(text string, rows, columns int) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	if len(lines) > rows {
		lines = append(lines[:rows-1], fmt.Sprintf("… %d more lines", len(lines)-rows+1))
	}
	for i, line := range lines {
		if runes := []rune(line); len(runes) > columns {
			line = string(runes[:columns])
		}
		lines[i] = line + "\x1b[K"
	}
	return strings.Join(lines, "\r\n")
}

// viewer gets views from a server.
type viewer struct {
	client   *sandgate.Client
	server   *sandgate.ServerInfo
	request  sandgate.ListRequest
	commands bool // list commands too
}

// topView is what top shows at one moment.
type topView struct {
	at        time.Time
	server    *sandgate.ServerInfo
	sandboxes []topSandbox
	pools     []*sandgate.PoolStatus
	poolNames []string
}

type topSandbox struct {
	info *sandgate.Info
	// running are the commands that run, and output the bytes that all retained ones
	// have written. known is false if they could not be listed.
	running []*sandgate.ProcessInfo
	output  map[string]int64
	known   bool
}

// look returns a view of this moment. A sandbox that goes away meanwhile, or whose
// agent does not answer, has no commands.
func (w viewer) look(ctx context.Context) (*topView, error) {
	client, info := w.client, w.server
	v := &topView{at: time.Now(), server: info}
	for s, err := range client.List(ctx, w.request) {
		if err != nil {
			return nil, err
		}
		v.sandboxes = append(v.sandboxes, topSandbox{info: s})
	}
	calls, callCtx := errgroup.WithContext(ctx)
	calls.SetLimit(topCalls)
	for i := range v.sandboxes {
		s := &v.sandboxes[i]
		if !w.commands || s.info.GetState() != sandboxv1.SandboxState_SANDBOX_STATE_ACTIVE {
			continue
		}
		calls.Go(func() error {
			callCtx, cancel := context.WithTimeout(callCtx, 2*time.Second)
			defer cancel()
			processes, err := client.Sandbox(s.info.GetSandboxId()).Processes(callCtx, true)
			if err != nil {
				return nil
			}
			s.known, s.output = true, make(map[string]int64, len(processes))
			for _, p := range processes {
				s.output[p.GetExecId()] = p.GetPosition()
				if p.GetExited() == nil {
					s.running = append(s.running, p)
				}
			}
			return nil
		})
	}
	if slices.Contains(info.GetCapabilities(), "pool") {
		for _, template := range info.GetTemplates() {
			status, err := client.PoolStatus(ctx, template)
			if errors.Is(err, sandgate.ErrTemplateNotFound) {
				continue // it has no pool
			}
			if err != nil {
				return nil, err
			}
			v.pools, v.poolNames = append(v.pools, status), append(v.poolNames, template)
		}
	}
	if err := calls.Wait(); err != nil {
		return nil, err
	}
	slices.SortStableFunc(v.sandboxes, func(a, b topSandbox) int {
		if n := len(b.running) - len(a.running); n != 0 {
			return n
		}
		return b.info.GetLastActivityTime().AsTime().Compare(a.info.GetLastActivityTime().AsTime())
	})
	return v, context.Cause(ctx)
}

// topRow is a sandbox as top prints it.
type topRow struct {
	ID       string `json:"sandbox_id"`
	State    string `json:"state"`
	Template string `json:"template"`
	// Commands is -1 if they were not listed.
	Commands    int     `json:"running_commands"`
	Output      float64 `json:"output_bytes_per_second"`
	IdleSeconds float64 `json:"idle_seconds"`
	Latest      string  `json:"latest_command,omitempty"`

	info *sandgate.Info
}

// rows returns the sandboxes with their rates since an earlier view.
func (v *topView) rows(before *topView) []topRow {
	past := make(map[string]map[string]int64)
	for _, s := range before.sandboxes {
		past[s.info.GetSandboxId()+" "+s.info.GetIncarnation()] = s.output
	}
	rows := make([]topRow, 0, len(v.sandboxes))
	for _, s := range v.sandboxes {
		row := topRow{
			ID: s.info.GetSandboxId(), State: word(s.info.GetState(), statePrefix), Template: s.info.GetTemplate(), Commands: -1, info: s.info,
			IdleSeconds: max(v.at.Sub(s.info.GetLastActivityTime().AsTime()), 0).Seconds(),
		}
		if s.known {
			row.Commands = len(s.running)
		}
		if earlier, ok := past[row.ID+" "+s.info.GetIncarnation()]; ok && v.at.After(before.at) {
			written := int64(0)
			for exec, position := range s.output {
				written += position - earlier[exec]
			}
			row.Output = float64(max(written, 0)) / v.at.Sub(before.at).Seconds()
		}
		var latest time.Time
		for _, p := range s.running {
			if started := p.GetStartTime().AsTime(); !started.Before(latest) {
				latest, row.Latest = started, shorten(terminal.Clean(p.GetCommand()))
			}
		}
		rows = append(rows, row)
	}
	return rows
}

// print writes the view as text.
func (v *topView) print(w io.Writer, before *topView) error {
	rows := v.rows(before)
	states := make(map[string]int)
	commands, output := 0, 0.0
	for _, r := range rows {
		states[r.State]++
		commands, output = commands+max(r.Commands, 0), output+r.Output
	}
	counts := make(map[string]string, len(states))
	for state, n := range states {
		counts[state] = strconv.Itoa(n)
	}
	who := v.server.GetPrincipal().GetName()
	if who == "" {
		who = "anonymous"
	}
	if _, err := fmt.Fprintf(w, "sandgate %s, %s   %s, tenant %s   %s\n%d sandboxes (%s)   %d commands   output %s/s\n",
		v.server.GetVersion(), v.server.GetProvider(), who, v.server.GetPrincipal().GetTenant(), v.at.Format(time.TimeOnly),
		len(rows), pairs(counts), commands, rate(output)); err != nil {
		return err
	}
	for i, p := range v.pools {
		if _, err := fmt.Fprintf(w, "pool %s: %d of %d available, %d claimed\n", v.poolNames[i], p.GetAvailable(), p.GetTarget(), p.GetActive()); err != nil {
			return err
		}
	}
	if _, err := fmt.Fprintln(w); err != nil {
		return err
	}
	cells := make([][]string, 0, len(rows))
	for _, r := range rows {
		n := strconv.Itoa(r.Commands)
		if r.Commands < 0 {
			n = "-"
		}
		cells = append(cells, []string{r.ID, r.State, r.Template, n, rate(r.Output) + "/s", ago(r.info.GetLastActivityTime()), until(r.info.GetExpireTime()), r.Latest})
	}
	return table(w, []string{"ID", "STATE", "TEMPLATE", "COMMANDS", "OUTPUT", "IDLE", "EXPIRES", "LATEST"}, cells)
}

// rate prints a number of bytes, also 0.
func rate(n float64) string {
	if n < 1 {
		return "0 B"
	}
	return size(int64(n))
}
