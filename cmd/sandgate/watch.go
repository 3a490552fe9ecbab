package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"

	sandgate "github.com/sandgate/sandgate/clients/go"
	"github.com/sandgate/sandgate/cmd/sandgate/internal/terminal"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

const (
	eventTypePrefix   = "EVENT_TYPE_"
	eventReasonPrefix = "EVENT_REASON_"
)

func (c *cli) watchCommand() *cobra.Command {
	var labels, types []string
	var request sandgate.WatchRequest
	cmd := &cobra.Command{
		Use:   "watch",
		Short: "Print what happens to sandboxes",
		Long: `Watch prints the events of sandboxes until it is interrupted: created, state_changed,
expiring, ended, and resync if events are missing. With --output json each line is one
object, with the cursor from which --cursor continues.`,
		Example: `  sandgate watch
  sandgate watch --type ended --label team=search
  sandgate watch --output json | jq -r .event.sandboxId`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, name := range types {
				t, ok := sandboxv1.EventType_value[eventTypePrefix+strings.ToUpper(name)]
				if !ok || t == 0 {
					return usage(cmd, "--type is created, state_changed, expiring, ended or resync, not %q", name)
				}
				request.Types = append(request.Types, sandboxv1.EventType(t))
			}
			var err error
			if request.Labels, err = assignments(cmd, "label", labels); err != nil {
				return err
			}
			return c.with(cmd, func(ctx context.Context, client *sandgate.Client) error {
				for w, err := range client.Watch(ctx, request) {
					if err != nil {
						return err
					}
					if err := c.watched(w); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&request.Cursor, "cursor", "", "continue after this cursor (default from now on)")
	flags.StringArrayVarP(&labels, "label", "l", nil, "only sandboxes with this label KEY=VALUE (repeatable: all must match)")
	flags.StringArrayVar(&request.Templates, "template", nil, "only sandboxes from this template (repeatable: any matches)")
	flags.StringArrayVar(&types, "type", nil, "only events of this type (repeatable: any matches)")
	_ = cmd.RegisterFlagCompletionFunc("type", cobra.FixedCompletions(
		[]string{"created", "state_changed", "expiring", "ended"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// watched prints an event in one line.
func (c *cli) watched(w sandgate.Watched) error {
	e := w.Event
	if c.json() {
		raw, err := protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(&sandboxv1.WatchSandboxesResponse{Cursor: w.Cursor, Event: e})
		if err != nil {
			return fmt.Errorf("print as JSON: %w", err)
		}
		return c.line(json.RawMessage(raw))
	}
	words := []string{e.GetTime().AsTime().Local().Format(time.RFC3339), e.GetSandboxId(), word(e.GetType(), eventTypePrefix)}
	if e.GetState() != 0 {
		words = append(words, word(e.GetState(), statePrefix))
	}
	if e.GetReason() != 0 {
		words = append(words, word(e.GetReason(), eventReasonPrefix))
	}
	if e.GetPrincipal() != "" {
		words = append(words, "by "+terminal.Clean(e.GetPrincipal()))
	}
	if e.GetExpireTime() != nil {
		words = append(words, "at "+e.GetExpireTime().AsTime().Local().Format(time.RFC3339))
	}
	words = append(words, terminal.Clean(e.GetMessage()))
	words = slices.DeleteFunc(words, func(s string) bool { return s == "" })
	_, err := fmt.Fprintln(c.stdout, strings.Join(words, "  "))
	return err
}
