// Package monitoring checks what operators watch a server with: the alerts and the
// dashboard of the chart, by Prometheus itself.
package monitoring

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

const (
	alertsFile    = "../../deploy/helm/sandgate/files/alerts.yaml"
	dashboardFile = "../../deploy/helm/sandgate/files/dashboard.json"
	page          = "../../docs/operations.md"
)

type rule struct {
	Alert, Expr         string
	For                 string
	Labels, Annotations map[string]string
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func alerts(t *testing.T) []rule {
	t.Helper()
	var file struct{ Groups []struct{ Rules []rule } }
	if err := yaml.Unmarshal(readFile(t, alertsFile), &file); err != nil {
		t.Fatal(err)
	}
	var all []rule
	for _, g := range file.Groups {
		all = append(all, g.Rules...)
	}
	if len(all) < 15 {
		t.Fatalf("%d alerts", len(all))
	}
	return all
}

// promtool runs Prometheus's own checker.
func promtool(t *testing.T, args ...string) {
	t.Helper()
	if _, err := exec.LookPath("promtool"); err != nil {
		t.Skip("needs promtool: make setup")
	}
	if out, err := exec.CommandContext(t.Context(), "promtool", args...).CombinedOutput(); err != nil {
		t.Fatalf("promtool %q: %v\n%s", args, err, out)
	}
}

// Each alert has an entry in docs/operations.md that its annotation leads to, and a
// severity.
func TestRunbook(t *testing.T) {
	text := string(readFile(t, page))
	_, entries, _ := strings.Cut(text, "\n## Alerts\n")
	entries, _, _ = strings.Cut(entries, "\n## ")
	var want []string
	for _, a := range alerts(t) {
		want = append(want, a.Alert)
		if _, anchor, _ := strings.Cut(a.Annotations["runbook_url"], "/docs/operations.md#"); anchor != strings.ToLower(a.Alert) {
			t.Errorf("%s leads to %q", a.Alert, a.Annotations["runbook_url"])
		}
		if !slices.Contains([]string{"critical", "warning", "info"}, a.Labels["severity"]) || a.Annotations["summary"] == "" || a.Annotations["description"] == "" {
			t.Errorf("%s: %v %v", a.Alert, a.Labels, a.Annotations)
		}
	}
	var got []string
	for _, m := range regexp.MustCompile(`(?m)^### (\w+)\n\n.{80}`).FindAllStringSubmatch(entries, -1) {
		got = append(got, m[1])
	}
	if !slices.Equal(got, want) {
		t.Errorf("entries %v\nalerts %v", got, want)
	}
}

var metricName = regexp.MustCompile(`\bsandgate_[a-z0-9_]+`)

// Alerts and dashboard name only metrics that docs/operations.md has, which are those
// of the server.
func TestMetricsExist(t *testing.T) {
	documented := string(readFile(t, page))
	texts := append([]string(nil), string(readFile(t, dashboardFile)))
	for _, a := range alerts(t) {
		texts = append(texts, a.Expr)
	}
	seen := map[string]bool{}
	for _, text := range texts {
		for _, name := range metricName.FindAllString(text, -1) {
			base := regexp.MustCompile(`_(bucket|count)$`).ReplaceAllString(name, "")
			if seen[base] = true; !strings.Contains(documented, "`"+base+"`") {
				t.Errorf("%s is no metric of docs/operations.md", name)
			}
		}
	}
	if len(seen) < 25 {
		t.Errorf("only %d metrics are watched", len(seen))
	}
}

// inputs are series that make an alert fire, and ones that do not, for 60 minutes with
// a value each minute.
var inputs = map[string]struct{ bad, good string }{
	"SandgateAbsent":       {`up 0x60`, `sandgate_build_info{instance="a"} 1x60`},
	"SandgateProviderDown": {`sandgate_provider_up{instance="a"} 0x60`, `sandgate_provider_up{instance="a"} 1x60`},
	"SandgateCreationsFail": {
		"sandgate_create_failures_total{reason=\"INTERNAL\"} 0+1x60\nsandgate_create_duration_seconds_count{path=\"cold\"} 0+10x60",
		"sandgate_create_failures_total{reason=\"QUOTA_EXCEEDED\"} 0+10x60\nsandgate_create_failures_total{reason=\"INTERNAL\"} 0+1x60\nsandgate_create_duration_seconds_count{path=\"cold\"} 0+100x60",
	},
	"SandgateCallsFail": {call("Unavailable", 1) + call("OK", 9), call("Unavailable", 1) + call("NotFound", 50) + call("OK", 90)},
	"SandgateCommandsStartSlowly": {
		histogram("sandgate_command_start_duration_seconds", "5", 90), histogram("sandgate_command_start_duration_seconds", "0.5", 100),
	},
	"SandgateCommandsLost":      {`sandgate_command_ends_total{reason="LOST"} 0+1x60`, `sandgate_command_ends_total{reason="EXITED"} 0+99x60`},
	"SandgateReattachmentsFail": {`sandgate_reattachments_total{outcome="failed"} 0+1x60`, `sandgate_reattachments_total{outcome="succeeded"} 0+99x60`},
	"SandgatePoolNotFull": {
		"sandgate_pool_available{template=\"a\",instance=\"x\"} 1x60\nsandgate_pool_target{template=\"a\",instance=\"x\"} 3x60",
		"sandgate_pool_available{template=\"a\",instance=\"x\"} 1x60\nsandgate_pool_available{template=\"a\",instance=\"y\"} 3x60\nsandgate_pool_target{template=\"a\",instance=\"x\"} 3x60",
	},
	"SandgateReaperFails": {`sandgate_reap_failures_total 0+1x60`, `sandgate_reap_failures_total 7x60`},
	"SandgateReapsLate":   {histogram("sandgate_reap_lag_seconds", "300", 50), histogram("sandgate_reap_lag_seconds", "60", 100)},
	"SandgateDiskFills":   {`sandgate_state_free_bytes 1000000x60`, "sandgate_state_free_bytes{instance=\"cluster\"} -1x60\nsandgate_state_free_bytes{instance=\"a\"} 9000000000x60"},
	"SandgateAuditFails":  {`sandgate_audit_failures_total{instance="a"} 0+1x60`, `sandgate_audit_failures_total{instance="a"} 5x60`},
	"SandgateCredentialsRejected": {
		`sandgate_credentials_rejected_total{instance="a"} 0+120x60`, `sandgate_credentials_rejected_total{instance="a"} 0+30x60`,
	},
	"SandgateRevocationListLate": {
		`sandgate_client_crl_next_update_timestamp_seconds{instance="a"} 3000x60`,
		"sandgate_client_crl_next_update_timestamp_seconds{instance=\"a\"} 7200x60\nsandgate_client_crl_next_update_timestamp_seconds{instance=\"none\"} 0x60",
	},
	"SandgateConfigRefused": {`sandgate_config_reload_success{instance="a"} 0x60`, `sandgate_config_reload_success{instance="a"} 1x60`},
	"SandgateQuotaNearlyUsed": {
		"sandgate_quota_used{tenant=\"a\",quota=\"max_sandboxes\"} 95x60\nsandgate_quota_limit{tenant=\"a\",quota=\"max_sandboxes\"} 100x60",
		"sandgate_quota_used{tenant=\"a\",quota=\"max_sandboxes\"} 50x60\nsandgate_quota_limit{tenant=\"a\",quota=\"max_sandboxes\"} 100x60",
	},
	"SandgateCountingFails": {`sandgate_count_failures_total 0+1x60`, `sandgate_count_failures_total 1x60`},
	"SandgateTelemetryLost": {`sandgate_otlp_export_failures_total{signal="traces"} 0+1x60`, `sandgate_otlp_export_failures_total{signal="traces"} 3x60`},
	"SandgateWebhookLate":   {`sandgate_webhook_delay_seconds{webhook="a"} 0+60x60`, `sandgate_webhook_delay_seconds{webhook="a"} 0x60`},
	"SandgateDescriptorsRunOut": {
		"process_open_fds{instance=\"a\"} 90x60\nprocess_max_fds{instance=\"a\"} 100x60\nsandgate_build_info{instance=\"a\"} 1x60",
		"process_open_fds{instance=\"other\"} 90x60\nprocess_max_fds{instance=\"other\"} 100x60\nprocess_max_fds{instance=\"a\"} 100x60\nsandgate_build_info{instance=\"a\"} 1x60",
	},
}

// worse are further series that make an alert fire: a server without a free descriptor
// cannot read its limit.
var worse = map[string]string{"SandgateDescriptorsRunOut": `sandgate_build_info{instance="a"} 1x60`}

// call is a counter of calls with an outcome, which grows by n a minute.
func call(code string, n int) string {
	return fmt.Sprintf("grpc_server_handled_total{grpc_service=\"sandbox.v1.SandboxService\",grpc_method=\"Execute\",grpc_code=%q} 0+%dx60\n", code, n)
}

// histogram has n of 100 samples a minute at most bound seconds, and the rest beyond.
func histogram(name, bound string, n int) string {
	return fmt.Sprintf("%[1]s_bucket{le=\"1\"} 0+0x60\n%[1]s_bucket{le=%[2]q} 0+%[3]dx60\n%[1]s_bucket{le=\"1000\"} 0+100x60\n%[1]s_bucket{le=\"+Inf\"} 0+100x60\n", name, bound, n)
}

// Each alert fires where it should within an hour, and is silent where it should not.
// Prometheus itself evaluates them.
func TestAlerts(t *testing.T) {
	promtool(t, "check", "rules", alertsFile)
	path, err := filepath.Abs(alertsFile)
	if err != nil {
		t.Fatal(err)
	}
	type series struct {
		Series string `json:"series"`
		Values string `json:"values"`
	}
	type object = map[string]any
	var tests []object
	of := func(text string) (list []series) {
		for line := range strings.Lines(strings.TrimSpace(text)) {
			line = strings.TrimSpace(line)
			i := strings.LastIndex(line, " ")
			list = append(list, series{line[:i], line[i+1:]})
		}
		return list
	}
	names := map[string]bool{}
	for _, a := range alerts(t) {
		names[a.Alert] = true
		in, ok := inputs[a.Alert]
		if !ok {
			t.Errorf("%s is not tested", a.Alert)
			continue
		}
		count := fmt.Sprintf(`count(ALERTS{alertname=%q,alertstate="firing"}) or vector(0)`, a.Alert)
		for _, c := range []struct {
			text  string
			fires int
		}{{in.bad, 1}, {cmp.Or(worse[a.Alert], in.bad), 1}, {in.good, 0}} {
			tests = append(tests, object{
				"name": a.Alert, "interval": "1m", "input_series": of(c.text),
				"promql_expr_test": []object{{"expr": count, "eval_time": "60m", "exp_samples": []object{{"labels": "{}", "value": c.fires}}}},
			})
		}
	}
	for name := range inputs {
		if !names[name] {
			t.Errorf("%s is no alert", name)
		}
	}
	raw, err := json.Marshal(object{"rule_files": []string{path}, "evaluation_interval": "1m", "tests": tests})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "tests.yaml")
	if err := os.WriteFile(file, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	promtool(t, "test", "rules", file)
}
