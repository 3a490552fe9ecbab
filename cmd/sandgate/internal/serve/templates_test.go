package serve

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
)

// emptyCluster answers as an API server without any objects does, and notes what
// was asked to be made.
func emptyCluster(t *testing.T) (kubeconfig string, made func() []string) {
	t.Helper()
	var mu sync.Mutex
	var seen []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case r.Method != http.MethodGet:
			mu.Lock()
			seen = append(seen, r.Method+" "+r.URL.Path)
			mu.Unlock()
			w.WriteHeader(http.StatusForbidden)
			_, _ = fmt.Fprint(w, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "code": 403}`)
		case r.URL.Path == "/version":
			_, _ = fmt.Fprint(w, `{"major": "1", "minor": "33", "gitVersion": "v1.33.0"}`)
		case strings.HasSuffix(r.URL.Path, "/sandboxclaims"):
			_, _ = fmt.Fprint(w, `{"kind": "SandboxClaimList", "apiVersion": "extensions.agents.x-k8s.io/v1beta1", "metadata": {}, "items": []}`)
		default:
			w.WriteHeader(http.StatusNotFound)
			_, _ = fmt.Fprint(w, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}`)
		}
	}))
	t.Cleanup(server.Close)
	kubeconfig = writeFile(t, "kubeconfig", `{"apiVersion": "v1", "kind": "Config", "current-context": "c",
		"clusters": [{"name": "c", "cluster": {"server": "`+server.URL+`"}}],
		"contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}], "users": [{"name": "u", "user": {}}]}`)
	return kubeconfig, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return seen
	}
}

// What is wrong with a template is said before anybody can call, by each
// provider, with the template's name and its field's.
func TestServeRefusesATemplateItCannotUse(t *testing.T) {
	kubeconfig, made := emptyCluster(t)
	for provider, wrong := range map[string]string{
		"local":        `{writeable_root: true}`,
		"kubernetes":   `{runtime_class: gvisor}`,
		"agentsandbox": `{sandbox_templat: python}`,
	} {
		t.Run(provider, func(t *testing.T) {
			if provider == "local" && (os.Geteuid() != 0 || runtime.GOOS != "linux") {
				t.Skip("the local provider needs Linux and root")
			}
			config := writeFile(t, "c.yaml", "templates:\n- {name: fine}\n- {name: py, provider_options: "+wrong+"}\n")
			var stderr bytes.Buffer
			err := run(t.Context(), &stderr, "--provider", provider, "--listen", "127.0.0.1:0", "--state-dir", t.TempDir(),
				"--config", config, "--kubernetes-kubeconfig", kubeconfig, "--agent", writeFile(t, "agent", "agent"))
			field, _, _ := strings.Cut(wrong[1:], ":")
			want := fmt.Sprintf(`server: template "py": provider_options: unknown field %q; there are `, field)
			if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(stderr.String(), "serves at") {
				t.Errorf("%v, want %s", err, want)
			}
		})
	}
	for _, request := range made() {
		// A review is a question, though it is posted.
		if !strings.Contains(request, "/leases") && !strings.HasSuffix(request, "/selfsubjectreviews") {
			t.Errorf("the cluster was told to %s", request)
		}
	}
}
