package report_test

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/sandgate/sandgate/bench/report"
)

func TestPrintRunsTheRowsAskedFor(t *testing.T) {
	var ran []string
	row := func(name string) report.Row[int] {
		return report.Row[int]{Name: name, Run: func(context.Context, int) ([]report.Figure, error) {
			ran = append(ran, name)
			return []report.Figure{{What: "what " + name + " takes"}}, nil
		}}
	}
	rows := []report.Row[int]{row("execute"), row("upload"), row("upload-large")}
	for _, c := range []struct{ only, ran, fails string }{
		{only: "", ran: "execute upload upload-large"},
		{only: "upload", ran: "upload upload-large"},
		{only: "exce", fails: `no row is called "exce"; there are execute, upload, upload-large`},
	} {
		ran = nil
		var out bytes.Buffer
		err := report.Print(t.Context(), &out, 0, c.only, rows)
		if got := strings.Join(ran, " "); got != c.ran || (err != nil) != (c.fails != "") {
			t.Errorf("%q: ran %q, %v", c.only, got, err)
		}
		if c.fails != "" && (err.Error() != c.fails || out.Len() > 0) {
			t.Errorf("%q: %v, %q", c.only, err, out.String())
		}
	}
}
