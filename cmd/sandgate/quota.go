package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	sandgate "github.com/sandgate/sandgate/clients/go"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

func (c *cli) quotaCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "quota",
		Short: "Show your quotas and their use",
		Long: `Show the quotas of your tenant and of you, with what is in use. An operator sees
those of another tenant with --tenant. Quotas of streams and commands are counted by
each server alone.`,
		Example: `  sandgate quota
  sandgate --tenant build quota
  sandgate quota --output json | jq '.[] | select(.used >= .limit)'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.with(cmd, func(ctx context.Context, client *sandgate.Client) error {
				info, err := client.ServerInfo(ctx)
				if err != nil {
					return err
				}
				return c.quotas(info)
			})
		},
	}
}

// quotas prints the quotas of a caller.
func (c *cli) quotas(info *sandgate.ServerInfo) error {
	if c.json() {
		type row struct {
			Name  string `json:"name"`
			Scope string `json:"scope"`
			Limit int64  `json:"limit"`
			Used  int64  `json:"used"`
		}
		rows := []row{}
		for _, q := range info.GetQuotas() {
			rows = append(rows, row{q.GetName(), q.GetScope(), q.GetLimit(), q.GetUsed()})
		}
		return c.object(rows)
	}
	if len(info.GetQuotas()) == 0 {
		_, err := fmt.Fprintf(c.stdout, "The tenant %s has no quotas.\n", info.GetPrincipal().GetTenant())
		return err
	}
	var rows [][]string
	for _, q := range info.GetQuotas() {
		rows = append(rows, []string{q.GetScope(), q.GetName(), quotaValue(q, q.GetUsed()), quotaValue(q, q.GetLimit())})
	}
	return table(c.stdout, []string{"OF", "QUOTA", "USED", "LIMIT"}, rows)
}

func quotaValue(q *sandboxv1.Quota, n int64) string {
	switch {
	case n < 0:
		return "unknown"
	case strings.HasSuffix(q.GetName(), "_bytes"):
		return size(n)
	default:
		return strconv.FormatInt(n, 10)
	}
}
