package kubernetes

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/agentsandbox"
	raw "github.com/sandgate/sandgate/providers/kubernetes"
	"github.com/sandgate/sandgate/providers/providertest"
)

func portForwardConfig(t *testing.T) raw.Config {
	t.Helper()
	config := rawConfig(t)
	config.AgentImage, config.Way, config.AgentPort = agentImage(), raw.WayPortForward, podIPPort
	return config
}

func wayRig(t *testing.T, client *kubernetes.Clientset, config raw.Config) rawRig {
	t.Helper()
	r := rawRig{Provider: openRaw(t, config), config: config, client: client}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return r
}

// TestRawPortForward: raw pods whose agents listen on their pods' loopback only
// and are reached by forwarded ports.
func TestRawPortForward(t *testing.T) {
	t.Parallel()
	client, _ := clientset(t)
	config := portForwardConfig(t)
	config.Kubeconfig = account(t, client, config.Namespace, withoutExec(t, "kubernetes", "port-forward"))
	r := wayRig(t, client, config)

	t.Run("S5-5 S5-15 create, execute, copy and delete without a single exec", func(t *testing.T) {
		r.made(t, "forwarded", rawSpec("forwarded", ""))
		if got := r.shell(t, "forwarded", "echo here; head -c 3000000 /dev/zero | wc -c; env"); !strings.HasPrefix(got, "here\n3000000\n") || strings.Contains(got, "SECRET") {
			t.Errorf("it says %q", got)
		}
		if err := r.Delete(limit(t), "forwarded", providers.Condition{}); err != nil {
			t.Fatal(err)
		}
		r.nothingLeft(t, "forwarded")
	})
	t.Run("C25 nothing listens on a network", func(t *testing.T) {
		r.made(t, "closed", rawSpec("closed", ""))
		said := execIn(t, client, pod(t, client, config.Namespace), fmt.Sprintf(
			"nc -w 5 %s %d </dev/null && echo open || echo closed", r.pod(t, config.Namespace, "closed").Status.PodIP, podIPPort))
		if said != "closed\n" {
			t.Errorf("from another pod it is %q", said)
		}
	})
	t.Run("S5-5 a pod of the pool", func(t *testing.T) {
		pools := poolOf(1)
		pools[0].Spec.TemplateOptions = nil // a setup script takes an exec
		if err := r.KeepPools(limit(t), pools); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = r.KeepPools(limit(t), nil) }()
		pooled(t, r.Provider, "default", full)
		spec := poolSpec("claimed")
		spec.TemplateOptions = nil
		if info := r.made(t, "claimed", spec); !info.FromPool {
			t.Errorf("claim %+v", info)
		}
		if got := r.shell(t, "claimed", "echo $FROM_TEMPLATE"); got != "yes\n" {
			t.Errorf("it says %q", got)
		}
	})
	t.Run("S5-5 servers of the other ways", func(t *testing.T) {
		for _, way := range []raw.Way{raw.WayExec, raw.WayPodIP} {
			config := config
			config.Way, config.Kubeconfig = way, os.Getenv("KUBECONFIG")
			other := wayRig(t, client, config)
			ours, theirs := "from-forward-"+string(way), "from-"+string(way)
			r.made(t, ours, rawSpec(ours, ""))
			if got := other.shell(t, ours, "echo here"); got != "here\n" {
				t.Errorf("by %s it says %q", way, got)
			}
			if way == raw.WayPodIP {
				needPodNetwork(t, client, config.Namespace)
				other.made(t, theirs, rawSpec(theirs, ""))
				if got := r.shell(t, theirs, "echo here"); got != "here\n" {
					t.Errorf("made by %s it says %q", way, got)
				}
			}
		}
	})
	t.Run("S5-5 a pod that was killed", func(t *testing.T) {
		r.made(t, "killed", rawSpec("killed", ""))
		pod := r.pod(t, config.Namespace, "killed")
		if err := client.CoreV1().Pods(pod.Namespace).Delete(limit(t), pod.Name, meta.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		conn, err := r.Dial(limit(t), "killed")
		for err == nil { // its last connections may still be taken
			_ = conn.Close()
			conn, err = r.Dial(limit(t), "killed")
		}
		if !errors.Is(err, providers.ErrNotActive) || time.Since(began) > 15*time.Second {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
	})
}

// TestRawPortForwardAccess: the chart's rule for the way is needed, and named.
func TestRawPortForwardAccess(t *testing.T) {
	t.Parallel()
	client, _ := clientset(t)
	config := portForwardConfig(t)
	config.Kubeconfig = account(t, client, config.Namespace, chartRules(t, "kubernetes", "way=pod-ip"))
	r := wayRig(t, client, config)
	_, err := providertest.Create(limit(t), r, "x", rawSpec("x", ""))
	if !errors.Is(err, providers.ErrForbidden) && !errors.Is(err, providers.ErrAgentCannotStart) || !strings.Contains(err.Error(), "pods/portforward") {
		t.Errorf("%v", err)
	}
}

// TestRawPortForwardConformance holds the way to a part of the suite, or to all
// of it.
func TestRawPortForwardConformance(t *testing.T) {
	t.Parallel()
	config := portForwardConfig(t)
	config.Image = pythonImage()
	conformance(t, config, `{"disk_medium": "Memory"}`, part(t, 16, "port-forward"), nil)
}

// TestAgentSandboxPortForward: agents that were put into pods of agent-sandbox
// and are reached by forwarded ports.
func TestAgentSandboxPortForward(t *testing.T) {
	t.Parallel()
	r := newASRig(t)
	client, _ := clientset(t)
	needAgentSandbox(t, client)
	r.template("box", restricted(image()), nil)
	p := r.openWay(t, account(t, client, r.namespace, chartRules(t, "agentsandbox", "way=port-forward")), agentsandbox.WayPortForward)
	defer func() { _ = p.Close() }()
	spec := asSpec(`{"sandbox_template": "box"}`)
	spec.Tenant, spec.ID, spec.Hash = "t", "forwarded", "forwarded"
	before, err := providertest.Create(limit(t), p, "forwarded", spec)
	if err != nil {
		t.Fatal(err)
	}
	said := providertest.Shell(t, p, "forwarded", "head -c 3000000 /dev/zero | wc -c; cat /proc/*/cmdline | tr '\\0' ' '")
	if !strings.HasPrefix(said, "3000000\n") || !strings.Contains(said, fmt.Sprint("--listen-tcp 127.0.0.1:", podIPPort)) {
		t.Errorf("it says %q", said)
	}
	t.Run("S5-5 S5-15 without the right to exec", func(t *testing.T) {
		noExec := r.openWay(t, account(t, client, r.namespace, withoutExec(t, "agentsandbox", "port-forward")), agentsandbox.WayPortForward)
		defer func() { _ = noExec.Close() }()
		if got := providertest.Shell(t, noExec, "forwarded", "echo by port"); got != "by port\n" {
			t.Errorf("it says %q", got)
		}
	})
	t.Run("S5-5 by a server of another way", func(t *testing.T) {
		byIP := r.openPodIP(t, os.Getenv("KUBECONFIG"))
		defer func() { _ = byIP.Close() }()
		if got := providertest.Shell(t, byIP, "forwarded", "echo by exec"); got != "by exec\n" {
			t.Errorf("it says %q", got)
		}
	})
	t.Run("S5-5 an agent that was killed", func(t *testing.T) {
		pod, err := client.CoreV1().Pods(r.namespace).Get(limit(t), "forwarded", meta.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		execIn(t, client, pod, killAgent)
		if got := providertest.Shell(t, p, "forwarded", "echo here"); got != "here\n" {
			t.Errorf("it says %q", got)
		}
		if info, err := p.Get(limit(t), "forwarded"); err != nil || info.Incarnation == before.Incarnation {
			t.Errorf("%+v, %v", info, err)
		}
	})
}

// TestAgentSandboxPortForwardConformance holds the way to a part of the suite,
// or to all of it.
func TestAgentSandboxPortForwardConformance(t *testing.T) {
	t.Parallel()
	r := newASRig(t)
	client, _ := clientset(t)
	needAgentSandbox(t, client)
	r.template("suite", restricted(pythonImage()), map[string]any{"envVarsInjectionPolicy": "Allowed"})
	providertest.Run(t, providertest.Harness{
		Open: func(t *testing.T) providers.Provider {
			return r.openWay(t, os.Getenv("KUBECONFIG"), agentsandbox.WayPortForward)
		},
		Spec:   func() providers.Spec { return asSpec(`{"sandbox_template": "suite"}`) },
		Pick:   part(t, 16, "claims by port"),
		Except: asExceptions,
	})
}

// TestChartPortForward installs the chart with the way by forwarded ports, with
// each provider; with SANDGATE_KUBERNETES=full the conformance suite follows.
func TestChartPortForward(t *testing.T) {
	t.Parallel()
	client, config := clientset(t)
	t.Run("S5-5 S5-15 kubernetes", func(t *testing.T) {
		t.Parallel()
		c := install(t, client, config, "kubernetes",
			"--set", "extraArgs={--kubernetes-image=docker.io/sandgate/python:test},way=port-forward,agentPort=8765",
			"--set-json", `config={"templates":[{"name":"default","resources":{"memory_bytes":1073741824,"cpu_millis":1000,"disk_bytes":536870912},"max_resources":{"max_processes":4096},"provider_options":{"disk_medium":"Memory"}}]}`)
		c.byPort(t)
	})
	t.Run("S5-5 S5-15 agentsandbox", func(t *testing.T) {
		t.Parallel()
		needAgentSandbox(t, client)
		c := install(t, client, config, "agentsandbox", "--set", "way=port-forward",
			"--set-json", `config={"templates":[{"name":"default","provider_options":{"sandbox_template":"box"}}]}`)
		d, err := dynamic.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		r := &asRig{t: t, dynamic: d, namespace: c.sandboxes}
		r.template("box", restricted(pythonImage()), nil)
		c.byPort(t)
	})
}

// byPort runs a command, and with SANDGATE_KUBERNETES=full the conformance suite.
func (c installed) byPort(t *testing.T) {
	t.Helper()
	if out := c.run(t, binary("sandgate"), "run", "--", "echo", "out"); out != "out\n" {
		t.Errorf("%q", out)
	}
	if os.Getenv("SANDGATE_KUBERNETES") == "full" {
		c.conformance(t, "")
	}
}
