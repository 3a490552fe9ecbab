package faults

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	sandgate "github.com/sandgate/sandgate/clients/go"
)

// interceptor is an API server's front that sees each request that changes
// something, and lets one of them meet a fault.
type interceptor struct {
	proxy *httputil.ReverseProxy

	mu    sync.Mutex
	seen  []string // since it was armed
	at    int      // which one meets the fault, from 1; 0: none
	fault func(http.ResponseWriter, *http.Request)
}

// intercept serves in front of the API server, with the rights of the harness, and
// returns a kubeconfig that leads there.
func (r *harness) intercept(t *testing.T) (*interceptor, string) {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		t.Fatal(err)
	}
	target, err := url.Parse(config.Host)
	if err != nil {
		t.Fatal(err)
	}
	transport, err := rest.TransportFor(config)
	if err != nil {
		t.Fatal(err)
	}
	i := &interceptor{proxy: httputil.NewSingleHostReverseProxy(target)}
	i.proxy.Transport, i.proxy.FlushInterval = transport, -1 // watches
	i.proxy.ErrorHandler = func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) }
	front := httptest.NewServer(i)
	t.Cleanup(front.Close)
	t.Cleanup(front.CloseClientConnections)
	file := clientcmdapi.NewConfig()
	file.Clusters["c"] = &clientcmdapi.Cluster{Server: front.URL}
	file.AuthInfos["u"] = &clientcmdapi.AuthInfo{}
	file.Contexts["c"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	file.CurrentContext = "c"
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*file, path); err != nil {
		t.Fatal(err)
	}
	return i, path
}

// arm counts steps from here on, and has one of them meet the fault.
func (i *interceptor) arm(at int, fault func(http.ResponseWriter, *http.Request)) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.seen, i.at, i.fault = nil, at, fault
}

// steps are the requests since arm.
func (i *interceptor) steps() []string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return slices.Clone(i.seen)
}

func (i *interceptor) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	step := stepOf(r)
	i.mu.Lock()
	var fault func(http.ResponseWriter, *http.Request)
	if step != "" {
		if i.seen = append(i.seen, step); len(i.seen) == i.at {
			fault = i.fault
		}
	}
	i.mu.Unlock()
	if fault == nil {
		fault = i.proxy.ServeHTTP
	}
	fault(w, r)
}

// stepOf names a request that changes something of a sandbox, or is empty.
func stepOf(r *http.Request) string {
	parts := strings.Split(r.URL.Path, "/")
	at := slices.Index(parts, "namespaces") + 2
	if r.Method == http.MethodGet || at < 2 || at >= len(parts) || parts[at] == "leases" || parts[at] == "events" {
		return ""
	}
	resource := parts[at]
	if len(parts) > at+2 {
		resource += "/" + parts[at+2]
	}
	return strings.ToLower(r.Method) + " " + resource
}

// Faults of one request.
const (
	failed       = "fails"
	lost         = "is done and its reply is lost"
	killedBefore = "is not done, the server is killed"
	killedAfter  = "is done, the server is killed"
)

// strike returns a fault, which kills the given server where it kills.
func (i *interceptor) strike(kind string, kill func()) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, r *http.Request) {
		if kind == failed {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusInternalServerError)
			_, _ = fmt.Fprint(w, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "injected", "reason": "InternalError", "code": 500}`)
			return
		}
		if kind != killedBefore {
			i.proxy.ServeHTTP(httptest.NewRecorder(), r)
		}
		if kind != lost {
			kill()
		}
		panic(http.ErrAbortHandler)
	}
}

// TestCreationStepByStep lets each request that a creation makes of the API server
// fail, lose its reply, or be the last one of its server, and another server takes
// over. The caller's creation, or its next attempt, makes one sandbox that works and
// can be deleted. Nothing is left.
func TestCreationStepByStep(t *testing.T) {
	for _, provider := range []string{"kubernetes", "agentsandbox"} {
		steps := stepsOf(t, provider)
		t.Logf("%s: %q", provider, steps)
		for n, step := range steps {
			for _, kind := range []string{failed, lost, killedBefore, killedAfter} {
				name := fmt.Sprintf("C2 C23 %s, step %d, %s, %s", provider, n+1, step, kind)
				if !chosen(t, name) {
					continue
				}
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					interrupted(t, provider, n+1, kind)
				})
			}
		}
	}
}

// chosen picks one case in five, by the seed; SANDGATE_KUBERNETES=full has all run.
func chosen(t *testing.T, name string) bool {
	return os.Getenv("SANDGATE_KUBERNETES") == "full" || seeded(t, name).IntN(5) == 0
}

// stepsOf are the requests of a creation without a fault.
func stepsOf(t *testing.T, provider string) []string {
	t.Helper()
	r := newHarness(t)
	i, s := r.interceptedSide(t, provider)
	i.arm(0, nil)
	s.create(t, "")
	steps := i.steps()
	if len(steps) < 2 {
		t.Fatalf("a creation of %s has the steps %q", provider, steps)
	}
	return steps
}

// interceptedSide has two servers, of which the first one's requests are seen.
func (r *harness) interceptedSide(t *testing.T, provider string) (*interceptor, *side) {
	t.Helper()
	direct := r.kubeconfig
	var i *interceptor
	i, r.kubeconfig = r.intercept(t)
	s := &side{harness: r, provider: provider, transport: "pod-ip"}
	s.servers[0] = s.serve()
	r.kubeconfig = direct
	s.servers[1] = s.serve()
	s.connect()
	return i, s
}

func interrupted(t *testing.T, provider string, step int, kind string) {
	r := newHarness(t)
	i, s := r.interceptedSide(t, provider)
	struck := make(chan struct{})
	strike := i.strike(kind, func() {
		_ = s.servers[0].cmd.Process.Kill()
		s.front.to(s.servers[1].address)
		s.front.cut()
	})
	i.arm(step, func(w http.ResponseWriter, r *http.Request) {
		close(struck)
		strike(w, r)
	})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	began := time.Now()
	request := sandgate.CreateRequest{ID: "stepped"}
	box, _, err := s.client.Create(ctx, request)
	took := time.Since(began).Round(time.Millisecond)
	select {
	case <-struck:
	default:
		t.Fatalf("the step never came: %q", i.steps())
	}
	t.Logf("after %v: %v", took, err)
	for err != nil {
		if errors.Is(err, sandgate.ErrInternal) && !strings.Contains(err.Error(), "injected") {
			t.Errorf("a fault of the cluster is told as one of the server: %v", err)
		}
		select {
		case <-ctx.Done():
			t.Fatalf("it cannot be made any more: %v", err)
		case <-time.After(200 * time.Millisecond):
		}
		box, _, err = s.client.Create(ctx, request)
	}
	got, err := box.Execute(ctx, sandgate.ExecuteRequest{Shell: "echo works"})
	if err != nil || string(got.Stdout) != "works\n" {
		t.Errorf("it does not work: %+v, %v", got, err)
	}
	pods, err := r.client.CoreV1().Pods(r.namespace).List(ctx, meta.ListOptions{})
	if err != nil || len(pods.Items) != 1 {
		t.Errorf("%d pods, %v", len(pods.Items), err)
	}
	if err := box.Delete(ctx); err != nil {
		t.Error(err)
	}
	r.nothingLeft(t)
}
