package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"
)

// node is the only node's name. With this name the API server reaches the kubelet
// on the loopback address, and no other address of the machine is used.
const node = "localhost"

// networkPolicy is the component that enforces NetworkPolicies.
const networkPolicy = "network-policy"

// component is one process of the cluster.
type component struct {
	name  string
	argv  []string                    // argv[0] is a program, or a name in kubes
	ready func(context.Context) error // nil while it serves
	// optional: "up" does not start it, and pods can run without it.
	optional bool
}

// components are all of them, in the order in which they start.
func (c *cluster) components() []component {
	p := c.state.Ports
	etcd := url("http", p.Etcd, "")
	peer := url("http", p.EtcdPeer, "")
	pki := func(name string) string { return c.path("pki", name) }
	return []component{
		{name: "etcd", argv: []string{
			"etcd", "--data-dir=" + c.path("etcd"), "--log-outputs=stderr", "--unsafe-no-fsync",
			"--listen-client-urls=" + etcd, "--advertise-client-urls=" + etcd,
			"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer,
			"--initial-cluster=default=" + peer,
		}, ready: answers(etcd+"/health", nil)},
		{name: "containerd", argv: []string{
			"containerd", "--config=" + c.path("containerd", "config.toml"),
		}, ready: c.runtimeReady},
		{name: "kube-apiserver", argv: []string{
			"kube-apiserver", "--etcd-servers=" + etcd,
			"--bind-address=127.0.0.1", "--advertise-address=127.0.0.1",
			"--secure-port=" + strconv.Itoa(p.API), "--cert-dir=" + c.path("pki"),
			"--tls-cert-file=" + pki("apiserver.crt"), "--tls-private-key-file=" + pki("apiserver.key"),
			"--client-ca-file=" + pki("ca.crt"), "--authorization-mode=Node,RBAC",
			"--service-account-issuer=https://kubernetes.default.svc",
			"--service-account-key-file=" + pki("accounts.key"),
			"--service-account-signing-key-file=" + pki("accounts.key"),
			"--service-cluster-ip-range=10.96.0.0/16", "--endpoint-reconciler-type=none",
			"--kubelet-preferred-address-types=Hostname",
			"--kubelet-certificate-authority=" + pki("ca.crt"),
			"--kubelet-client-certificate=" + pki("to-kubelet.crt"),
			"--kubelet-client-key=" + pki("to-kubelet.key"),
			"--allow-privileged=true",
		}, ready: answers(c.server()+"/readyz", c.trust())},
		{name: "kube-controller-manager", argv: []string{
			"kube-controller-manager", "--kubeconfig=" + pki("manager.kubeconfig"),
			"--service-account-private-key-file=" + pki("accounts.key"), "--root-ca-file=" + pki("ca.crt"),
			"--use-service-account-credentials=true", "--enable-hostpath-provisioner=true",
			"--flex-volume-plugin-dir=" + c.path("volume-plugins"), "--leader-elect=false", "--secure-port=0",
		}},
		{name: "kube-scheduler", argv: []string{
			"kube-scheduler", "--kubeconfig=" + pki("scheduler.kubeconfig"),
			"--leader-elect=false", "--secure-port=0",
		}},
		{name: "kubelet", argv: []string{
			"kubelet", "--config=" + c.path("kubelet.yaml"), "--kubeconfig=" + pki("node.kubeconfig"),
			"--hostname-override=" + node, "--root-dir=" + c.path("kubelet"), "--cert-dir=" + c.path("pki"),
		}, ready: answers(url("http", p.KubeletHealth, "/healthz"), nil)},
		{name: "agent-sandbox", argv: []string{
			c.beside("agent-sandbox-controller"), "--kubeconfig=" + c.path("kubeconfig"), "--extensions",
			"--enable-webhook=false", "--leader-elect=false", "--metrics-bind-address=127.0.0.1:0",
			"--health-probe-bind-address=127.0.0.1:" + strconv.Itoa(p.Sandbox),
		}, ready: answers(url("http", p.Sandbox, "/readyz"), nil)},
		// It writes to the machine's firewall, and takes processor time for each pod
		// that comes or goes.
		{name: networkPolicy, argv: []string{
			c.beside(networkPolicy), "--kubeconfig=" + c.path("kubeconfig"), "--node=" + node,
		}, optional: true},
	}
}

// component finds one by its name. "apiserver" is as good as "kube-apiserver".
func (c *cluster) component(name string) (component, error) {
	var names []string
	for _, component := range c.components() {
		if component.name == name || component.name == "kube-"+name {
			return component, nil
		}
		names = append(names, component.name)
	}
	return component{}, fmt.Errorf("no component %q: there are %q", name, names)
}

func (c *cluster) server() string { return url("https", c.state.Ports.API, "") }

func url(scheme string, port int, path string) string {
	return fmt.Sprintf("%s://127.0.0.1:%d%s", scheme, port, path)
}

// trust is the cluster's own authority, or nil before there is one.
func (c *cluster) trust() *x509.CertPool {
	data, err := os.ReadFile(c.path("pki", "ca.crt"))
	if err != nil {
		return nil
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(data)
	return pool
}

// answers asks a URL and takes any status 200 for an answer.
func answers(url string, trust *x509.CertPool) func(context.Context) error {
	return func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		transport := &http.Transport{
			TLSClientConfig: &tls.Config{RootCAs: trust},
			DialContext:     (&net.Dialer{Timeout: time.Second}).DialContext,
		}
		defer transport.CloseIdleConnections()
		response, err := transport.RoundTrip(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("%s says %s", url, response.Status)
		}
		return nil
	}
}

// start starts a component unless it runs, and returns when it serves.
func (c *cluster) start(ctx context.Context, one component) error {
	if c.pid(one.name) == 0 {
		if err := c.launch(one.name, one.argv); err != nil {
			return err
		}
	}
	return until(ctx, one.name, func(ctx context.Context) error {
		if c.pid(one.name) == 0 {
			return errGone{one.name, c.path("log", one.name+".log")}
		}
		if one.ready == nil {
			return nil
		}
		return one.ready(ctx)
	})
}

// restartEnded starts the components that have ended by themselves: some do when what
// they need is away for too long.
func (c *cluster) restartEnded(ctx context.Context) error {
	for _, component := range c.components() {
		if c.ended(component.name) {
			if err := c.start(ctx, component); err != nil {
				return err
			}
		}
	}
	return nil
}

// errGone ends a wait: what is waited for will not come.
type errGone struct{ name, log string }

func (e errGone) Error() string {
	return fmt.Sprintf("%s has ended; the last lines of %s:\n%s", e.name, e.log, tail(e.log, 20))
}

// until asks again and again until the answer is nil, the thing is gone, or ctx is
// done; then the last answer is the reason.
func until(ctx context.Context, what string, ask func(context.Context) error) error {
	for {
		one, cancel := context.WithTimeout(ctx, 5*time.Second)
		err := ask(one)
		cancel()
		var gone errGone
		if err == nil || errors.As(err, &gone) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w", what, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}
