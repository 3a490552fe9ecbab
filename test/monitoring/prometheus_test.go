package monitoring

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandgate/sandgate/test/daemon"
)

// patience bounds each wait, on a machine with much else to do.
const patience = 3 * time.Minute

// prometheus is a running Prometheus.
type prometheus struct {
	t       *testing.T
	address string
	log     *daemon.Log
}

var listening = regexp.MustCompile(`msg="Listening on" address=(\S+)`)

// startPrometheus starts one that scrapes a server each second and evaluates the
// alerts.
func startPrometheus(t *testing.T, target string) *prometheus {
	t.Helper()
	if _, err := exec.LookPath("prometheus"); err != nil {
		t.Skip("needs prometheus: make setup")
	}
	rules, err := filepath.Abs(alertsFile)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	raw, err := json.Marshal(map[string]any{
		"global":         map[string]any{"scrape_interval": "1s", "evaluation_interval": "1s"},
		"rule_files":     []string{rules},
		"scrape_configs": []any{map[string]any{"job_name": "sandgate", "static_configs": []any{map[string]any{"targets": []string{target}}}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(dir, "prometheus.yaml")
	if err := os.WriteFile(config, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	p := &prometheus{t: t, log: new(daemon.Log)}
	cmd := exec.Command("prometheus", "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address=127.0.0.1:0")
	cmd.Stdout, cmd.Stderr = p.log, p.log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	p.until("Prometheus listens", func() error {
		m := listening.FindStringSubmatch(p.log.String())
		if m == nil {
			return errors.New(p.log.Tail(2000))
		}
		p.address = m[1]
		return nil
	})
	return p
}

func (p *prometheus) until(what string, condition func() error) {
	p.t.Helper()
	await(p.t, what, condition)
}

// await waits for a condition.
func await(t *testing.T, what string, condition func() error) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		err := condition()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %v", what, err)
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// get decodes the data of an answer of Prometheus's API.
func (p *prometheus) get(path string, data any) error {
	ctx, cancel := context.WithTimeout(p.t.Context(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.address+"/api/v1/"+path, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var answer struct {
		Status, Error string
		Data          json.RawMessage
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil || answer.Status != "success" {
		return fmt.Errorf("%s: %s %s: %w", path, answer.Status, answer.Error, errors.Join(err, errUnsuccessful))
	}
	return json.Unmarshal(answer.Data, data)
}

var errUnsuccessful = errors.New("no result")

// query returns the number of series of an expression.
func (p *prometheus) query(expr string) (int, error) {
	var data struct{ Result []json.RawMessage }
	err := p.get("query?query="+url.QueryEscape(expr), &data)
	return len(data.Result), err
}

// server is a server with a pool, and the command line for it.
type server struct {
	t   *testing.T
	dir string
	*daemon.Daemon
	admin   string
	running bool
}

const (
	withPool = "quotas: {tenant: {max_sandboxes: 10, max_streams: 50}}\nlimits: {max_sandboxes: 20}\ntemplates: [{name: default}, {name: pooled, pool: 1}]\n" +
		"webhooks: [{name: receiver, url: %q, secret_file: %q}]\n"
	withoutPool = "templates: [{name: default}]\n"
)

// startServer starts a server, which leaves nothing behind when the test ends.
func startServer(t *testing.T) *server {
	t.Helper()
	s := &server{t: t, dir: t.TempDir()}
	t.Cleanup(func() {
		s.end()
		s.start(withoutPool) // deletes those of the pool
		s.run("rm", "--all", "--yes")
		await(t, "the pool is empty", func() error {
			for _, dir := range []string{"sandboxes", "pool"} {
				left, err := os.ReadDir(filepath.Join(s.dir, "state/local", dir))
				if err != nil || len(left) > 0 {
					return errors.Join(fmt.Errorf("%s has %v", dir, left), err)
				}
			}
			return nil
		})
		s.end()
	})
	receiver := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(receiver.Close)
	secret := filepath.Join(s.dir, "webhook")
	if err := os.WriteFile(secret, []byte("whsec_"+base64.StdEncoding.EncodeToString(make([]byte, 32))), 0o600); err != nil {
		t.Fatal(err)
	}
	s.start(fmt.Sprintf(withPool, receiver.URL, secret))
	await(t, "the address for metrics", func() error {
		for line := range strings.Lines(s.Log.String()) {
			if _, at, ok := strings.Cut(line, "metrics and health at "); ok {
				s.admin = strings.TrimSpace(at)
				return nil
			}
		}
		return errors.New(s.Log.Tail(1000))
	})
	return s
}

func (s *server) start(config string) {
	s.t.Helper()
	path := filepath.Join(s.dir, "config.yaml")
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		s.t.Fatal(err)
	}
	var err error
	// The test's context has ended in its clean-up.
	if s.Daemon, err = daemon.Start(context.WithoutCancel(s.t.Context()), daemon.Options{
		Listen: "unix://" + filepath.Join(s.dir, "s.sock"),
		Args: []string{"--state-dir", filepath.Join(s.dir, "state"), "--local-cgroup", "/sandgate-monitoring",
			"--admin-listen", "127.0.0.1:0", "--config", path},
	}); err != nil {
		s.t.Fatal(err)
	}
	s.running = true
}

// end stops the server, if it runs.
func (s *server) end() {
	s.t.Helper()
	if !s.running {
		return
	}
	s.running = false
	if err := s.Stop(); err != nil {
		s.t.Error(s.Explain(err))
	}
}

// run runs the command line and returns what it prints.
func (s *server) run(args ...string) string {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.t.Context()), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, daemon.Program(), args...)
	cmd.Env = append(os.Environ(), "SANDGATE_ADDRESS="+s.Address, "SANDGATE_TOKEN=")
	out, err := cmd.CombinedOutput()
	if err != nil {
		s.t.Errorf("sandgate %q: %v: %s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// variables are those of the dashboard, replaced as Grafana does.
var variables = strings.NewReplacer("$__rate_interval", "1m", "$instance", ".*")

// panels are the queries of the dashboard.
func panels(t *testing.T) map[string]string {
	t.Helper()
	var dashboard struct {
		Panels []struct {
			ID      int
			Title   string
			GridPos struct{ X, Y, W, H int }
			Targets []struct{ RefID, Expr string }
		}
	}
	if err := json.Unmarshal(readFile(t, dashboardFile), &dashboard); err != nil {
		t.Fatal(err)
	}
	queries, ids := map[string]string{}, map[int]bool{}
	for i, p := range dashboard.Panels {
		if ids[p.ID] {
			t.Errorf("%s: a panel with the id %d is there", p.Title, p.ID)
		}
		ids[p.ID] = true
		for _, o := range dashboard.Panels[:i] {
			a, b := p.GridPos, o.GridPos
			if a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H {
				t.Errorf("%q lies over %q", p.Title, o.Title)
			}
		}
		for _, target := range p.Targets {
			queries[p.Title+" "+target.RefID] = variables.Replace(target.Expr)
		}
	}
	if len(queries) < 30 {
		t.Errorf("%d queries", len(queries))
	}
	return queries
}

// checkMetrics has promtool check the metrics of a server that has some of each.
func checkMetrics(t *testing.T, admin string) {
	t.Helper()
	resp, err := http.Get("http://" + admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	cmd := exec.CommandContext(t.Context(), "promtool", "check", "metrics")
	cmd.Stdin = resp.Body
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("promtool check metrics: %v\n%s", err, out)
	}
}

var increases = regexp.MustCompile(`increase\((\w+(?:\{[^}]*\})?)\[`)

// hasCounters checks that a server has the counters of alerts before they count
// anything: Prometheus sees no increase in a series that begins above zero.
func hasCounters(t *testing.T, p *prometheus) {
	t.Helper()
	checked := 0
	for _, a := range alerts(t) {
		if a.Alert == "SandgateTelemetryLost" {
			continue // its counter begins with the collector, which this server has not
		}
		for _, m := range increases.FindAllStringSubmatch(a.Expr, -1) {
			checked++
			if n, err := p.query(m[1]); n == 0 || err != nil {
				t.Errorf("%s: a new server has no %s: %v", a.Alert, m[1], err)
			}
		}
	}
	if checked < 5 {
		t.Errorf("only %d counters", checked)
	}
}

// A real Prometheus scrapes a real server with sandboxes: each query of the dashboard
// has data, each rule can be evaluated, and no alert fires until the server is gone.
func TestPrometheus(t *testing.T) {
	if _, err := exec.LookPath("runc"); err != nil || os.Geteuid() != 0 {
		t.Skip("needs root and runc")
	}
	s := startServer(t)
	p := startPrometheus(t, s.admin)
	id := s.run("create")
	p.until("a first scrape", func() error {
		if n, err := p.query("sandgate_build_info"); n != 1 || err != nil {
			return errors.Join(fmt.Errorf("%d series", n), err)
		}
		return nil
	})
	hasCounters(t, p)
	empty := map[string]string{}
	p.until("each query has data", func() error {
		s.run("exec", id, "--", "echo", "x") // so that rates grow between scrapes
		clear(empty)
		for name, expr := range panels(t) {
			n, err := p.query(expr)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			if n == 0 {
				empty[name] = expr
			}
		}
		if len(empty) > 0 {
			return fmt.Errorf("no data: %v", empty)
		}
		return nil
	})
	checkMetrics(t, s.admin)
	type evaluated struct {
		Groups []struct {
			Rules []struct {
				Name, Health, LastError, State string
				Query                          string
			}
		}
	}
	// A busy machine and one with a full disk fulfil the conditions of these. They do
	// not last long enough for an alert.
	ofMachine := []string{"SandgateCommandsStartSlowly", "SandgateDiskFills"}
	firing := func() (names []string, err error) {
		var e evaluated
		if err := p.get("rules?type=alert", &e); err != nil || len(e.Groups) != 1 {
			return nil, errors.Join(fmt.Errorf("%d groups of rules", len(e.Groups)), err)
		}
		for _, r := range e.Groups[0].Rules {
			if r.Health != "ok" {
				return nil, fmt.Errorf("%s: %s %s", r.Name, r.Health, r.LastError)
			}
			if r.State == "firing" || r.State == "pending" && !slices.Contains(ofMachine, r.Name) {
				names = append(names, r.Name)
			}
		}
		return names, nil
	}
	p.until("all rules are evaluated, and nothing is wrong", func() error {
		names, err := firing()
		if err == nil && len(names) > 0 {
			err = fmt.Errorf("%v", names)
		}
		return err
	})
	s.end()
	p.until("the server's absence is noticed", func() error {
		names, err := firing()
		if err == nil && !strings.Contains(fmt.Sprint(names), "SandgateAbsent") {
			err = fmt.Errorf("%v", names)
		}
		return err
	})
}
