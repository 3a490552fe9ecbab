package monitoring

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sandgate/sandgate/test/daemon"
)

var (
	recordTo  = flag.String("record", "", "file for what the dashboard's panels show of a load (default: TestRecordDashboard is not run)")
	recordFor = flag.Duration("record-for", 4*time.Minute, "for how long to keep that load")
)

// recordStep is the time between two values of a recorded series.
const recordStep = 5 * time.Second

// A recorded panel is one of the dashboard with what it shows.
type recorded struct {
	Title, Type, Unit string
	X, Y, W, H        int
	Texts             map[string]string `json:",omitempty"` // shown in place of values
	Series            []series
}

type series struct {
	Name   string
	Values []*float64 // one each recordStep; nil: no data
}

var label = regexp.MustCompile(`\{\{(\w+)\}\}`)

// TestRecordDashboard keeps a server busy, and writes what a real Prometheus answers to
// the queries of the dashboard's panels. scripts/pictures draws it.
func TestRecordDashboard(t *testing.T) {
	if *recordTo == "" {
		return // It tests nothing: TestPrometheus evaluates the same queries.
	}
	s := startServer(t)
	p := startPrometheus(t, s.admin)
	begin := time.Now()
	work(s, begin.Add(*recordFor))
	var dashboard struct {
		Panels []struct {
			Title, Type string
			GridPos     struct{ X, Y, W, H int }
			FieldConfig struct {
				Defaults struct {
					Unit     string
					Mappings []struct {
						Options map[string]struct{ Text string }
					}
				}
			}
			Targets []struct{ Expr, LegendFormat string }
		}
	}
	if err := json.Unmarshal(readFile(t, dashboardFile), &dashboard); err != nil {
		t.Fatal(err)
	}
	var all []recorded
	for _, panel := range dashboard.Panels {
		at := panel.GridPos
		shown := panel.FieldConfig.Defaults
		r := recorded{Title: panel.Title, Type: panel.Type, Unit: shown.Unit, X: at.X, Y: at.Y, W: at.W, H: at.H, Texts: map[string]string{}}
		for _, m := range shown.Mappings {
			for value, option := range m.Options {
				r.Texts[value] = option.Text
			}
		}
		for _, target := range panel.Targets {
			found, err := p.queryRange(target.Expr, target.LegendFormat, begin)
			if err != nil {
				t.Fatalf("%s: %v", panel.Title, err)
			}
			r.Series = append(r.Series, found...)
		}
		all = append(all, r)
	}
	raw, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	raw = []byte(strings.ReplaceAll(string(raw), `{"Title"`, "\n"+`{"Title"`) + "\n")
	if err := os.WriteFile(*recordTo, raw, 0o644); err != nil {
		t.Fatal(err)
	}
}

// work makes calls of all kinds until a time, some of which fail.
func work(s *server, end time.Time) {
	for n := 0; time.Now().Before(end); n++ {
		id := s.run("create", "--template", []string{"default", "pooled"}[n%2])
		for range 2 + n%4 {
			s.run("exec", "-c", "head -c 200000 /dev/zero | tee data", id)
		}
		s.run("cp", id+":/workspace/data", s.dir)
		// These fail on purpose: a command that is killed, one that is not there.
		_ = s.command("exec", "--timeout", "100ms", id, "--", "sleep", "1").Run()
		_ = s.command("exec", "no-such-sandbox", "--", "true").Run()
		if n%3 > 0 {
			s.run("rm", id)
		}
		if n%12 == 11 {
			s.run("rm", "--all", "--yes")
		}
	}
}

// command is run without its output.
func (s *server) command(args ...string) *exec.Cmd {
	cmd := exec.CommandContext(s.t.Context(), daemon.Program(), args...)
	cmd.Env = append(os.Environ(), "SANDGATE_ADDRESS="+s.Address, "SANDGATE_TOKEN=")
	return cmd
}

// queryRange returns the series of a query since a time, with their names by the legend.
func (p *prometheus) queryRange(expr, legend string, begin time.Time) ([]series, error) {
	expr = variables.Replace(expr)
	end := time.Now()
	var data struct {
		Result []struct {
			Metric map[string]string
			Values [][2]any
		}
	}
	query := url.Values{
		"query": {expr}, "start": {strconv.FormatInt(begin.Unix(), 10)}, "end": {strconv.FormatInt(end.Unix(), 10)},
		"step": {strconv.Itoa(int(recordStep.Seconds()))},
	}
	if err := p.get("query_range?"+query.Encode(), &data); err != nil {
		return nil, err
	}
	if len(data.Result) == 0 {
		return nil, errors.New("no data: " + expr)
	}
	var all []series
	for _, r := range data.Result {
		one := series{
			Name:   label.ReplaceAllStringFunc(legend, func(name string) string { return r.Metric[strings.Trim(name, "{}")] }),
			Values: make([]*float64, int(end.Unix()-begin.Unix())/int(recordStep.Seconds())+1),
		}
		for _, v := range r.Values {
			value, err := strconv.ParseFloat(fmt.Sprint(v[1]), 64)
			at := (int64(v[0].(float64)) - begin.Unix()) / int64(recordStep.Seconds())
			if err != nil || value != value || at < 0 || int(at) >= len(one.Values) {
				continue
			}
			if value, err = strconv.ParseFloat(strconv.FormatFloat(value, 'g', 4, 64), 64); err == nil {
				one.Values[at] = &value
			}
		}
		all = append(all, one)
	}
	return all, nil
}
