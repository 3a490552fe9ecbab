package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
)

// status writes a table of the components and returns why the cluster is not
// ready, if it is not.
func (c *cluster) status(ctx context.Context, out io.Writer) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "COMPONENT\tPID\tSTATE\tLOG")
	for _, component := range c.components() {
		pid, state := c.pid(component.name), "serves"
		switch {
		case pid == 0 && component.optional:
			state = "optional, does not run"
		case pid == 0:
			state = "does not run"
		case component.ready != nil:
			if err := component.ready(ctx); err != nil {
				state = err.Error()
			}
		}
		fmt.Fprintf(table, "%s\t%d\t%s\t%s\n", component.name, pid, state, c.path("log", component.name+".log"))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	return c.check(ctx)
}

// tail is the end of a file.
func tail(path string, lines int) []byte {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	data = bytes.TrimSpace(data)
	all := bytes.Split(data, []byte("\n"))
	return bytes.Join(all[max(0, len(all)-lines):], []byte("\n"))
}
