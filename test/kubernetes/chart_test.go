package kubernetes

import (
	"os/exec"
	"strings"
	"testing"
)

// render is what the chart gives with its required values and more arguments,
// without the spaces at the beginnings of lines.
func render(t *testing.T, more ...string) (string, error) {
	t.Helper()
	if _, err := exec.LookPath("helm"); err != nil {
		t.Skip("needs helm: make setup, and .tools/bin on the PATH")
	}
	args := append([]string{
		"template", "sandgate", "../../deploy/helm/sandgate", "--namespace", "here",
		"--set", "tls.secretName=tls,auth.tokensSecretName=tokens",
	}, more...)
	out, err := exec.CommandContext(limit(t), "helm", args...).CombinedOutput()
	lines := strings.Split(string(out), "\n")
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	return strings.Join(lines, "\n"), err
}

func TestChartRefusesWrongValues(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ set, says string }{
		{"nonsense.key=1", "nonsense"},
		{"sandboxes.namepsace=x", "namepsace"},
		{"containerPort=70000", "containerPort"},
		{"replicas=many", "replicas"},
		{"provider=docker", "provider"},
		{"transport=by-foot", "transport"},
		{"image.digest=latest", "digest"},
		{"adminListen=:9090", "adminListen"},
		{"preview.domain=preview.example.com", "auth.specSecretName"},
		{"preview.domain=*.example.com,auth.specSecretName=spec", "/preview/domain"},
		{"hostNetwork=true", "agentFrom is required"},
		{"hostNetwork=true,transport=pod-ip", "agentFrom is required"},
		{"tls.secretName=", "tls.secretName is required"},
		{"tls.clientCRLConfigMap=lists", "needs tls.clientCertificates"},
		{"sandboxes.namespace=here", "the release's own"},
		{"sandboxes.namespace=here,sandboxes.createNamespace=false", "the release's own"},
		{"sandboxes.namespacePerSandbox=true,provider=agentsandbox", "namespacePerSandbox"},
		{"service.type=LoadBalancer", "networkPolicy.clients is required"},
		{"monitoring.podMonitor.enabled=true", "adminListen is required"},
		{"monitoring.prometheusRule.enabled=true", "adminListen is required"},
		{"monitoring.podMonitor.enabled=true,adminListen=0.0.0.0:9090", "networkPolicy.monitors is required"},
		{"monitoring.podmonitor.enabled=true", "podmonitor"},
		{"autoscaling.enabled=true,autoscaling.maxReplicas=1", "autoscaling.maxReplicas must not be less"},
	} {
		if out, err := render(t, "--set", c.set); err == nil || !strings.Contains(out, c.says) {
			t.Errorf("%s: %v: %.300s", c.set, err, out)
		}
	}
}

func TestChartValues(t *testing.T) {
	t.Parallel()
	digest := "sha256:" + strings.Repeat("0a", 32)
	for _, c := range []struct {
		name, set string
		has, not  []string
	}{
		{
			"defaults", "replicas=2",
			[]string{
				"name: here-sandboxes\n", "pod-security.kubernetes.io/enforce: restricted\n", "helm.sh/resource-policy: keep\n",
				"- --kubernetes-namespace=here-sandboxes\n", "namespace: here-sandboxes\n",
				"kind: NetworkPolicy\n", "- {key: kubernetes.io/metadata.name, operator: NotIn, values: [here-sandboxes]}\n", "- 169.254.0.0/16\n",
				"kind: PodDisruptionBudget\n", `- {name: GOMEMLIMIT, value: "483183820"}` + "\n", "topologyKey: kubernetes.io/hostname\n",
			},
			[]string{"ClusterRole", "ValidatingAdmissionPolicy", "strategy:", "admin", "spec-secret", "monitoring.coreos.com", "HorizontalPodAutoscaler", "dashboard"},
		},
		{"one replica", "replicas=1", nil, []string{"PodDisruptionBudget"}},
		{
			"an image by its digest", "image.digest=" + digest + ",image.tag=v1",
			[]string{`image: "sandgate@` + digest + `"`, "--kubernetes-agent-image=sandgate@" + digest + "\n", `app.kubernetes.io/version: "v1"` + "\n"}, nil,
		},
		{
			"a digest in the tag", "image.tag=v1+x@" + digest,
			[]string{`image: "sandgate:v1+x@` + digest + `"`, `app.kubernetes.io/version: "v1_x"` + "\n"}, nil,
		},
		{"a long tag", "image.tag=" + strings.Repeat("a", 100), []string{`app.kubernetes.io/version: "` + strings.Repeat("a", 63) + `"` + "\n"}, nil},
		{"the host's network, by address", "hostNetwork=true,agentFrom={10.0.0.0/8}", []string{`- "--kubernetes-agent-from=10.0.0.0/8"` + "\n"}, nil},
		{"the host's network, of the other provider", "hostNetwork=true,provider=agentsandbox", []string{"hostNetwork: true\n"}, nil},
		{"the host's network", "hostNetwork=true,transport=exec", []string{"rollingUpdate: {maxSurge: 0, maxUnavailable: 1}\n"}, []string{"metadata.name, operator: NotIn"}},
		{
			"an admin port", "adminListen=0.0.0.0:9090,auth.specSecretName=spec",
			[]string{
				"- --admin-listen=0.0.0.0:9090\n", "- {name: admin, containerPort: 9090}\n", "httpGet: {path: /readyz, port: admin}\n",
				"- --spec-secret-file=/etc/sandgate/spec/secret\n", "secret: {secretName: spec, defaultMode: 0440}\n",
			},
			[]string{"tcpSocket"},
		},
		{
			"revocation lists", "tls.clientCertificates=true,tls.clientCRLConfigMap=lists",
			[]string{
				"- --tls-client-ca=/etc/sandgate/tls/ca.crt\n", "- --tls-client-crl=/etc/sandgate/crl/crl\n",
				"- {name: crl, mountPath: /etc/sandgate/crl, readOnly: true}\n", "configMap: {name: lists}\n",
			},
			nil,
		},
		{
			"URLs", "preview.domain=preview.example.com,auth.specSecretName=spec",
			[]string{
				"- --preview-listen=0.0.0.0:7780\n", "- --preview-domain=preview.example.com\n", "- --preview-behind-proxy\n",
				"- {name: preview, port: 7780, targetPort: preview}\n", "- {name: preview, containerPort: 7780}\n", "- {port: preview, protocol: TCP}\n",
			},
			nil,
		},
		{
			"a namespace for each sandbox", "sandboxes.namespacePerSandbox=true",
			[]string{"kind: ClusterRole\n", "kind: ValidatingAdmissionPolicy\n", `request.userInfo.username == "system:serviceaccount:here:sandgate"`}, nil,
		},
		{"a namespace that is there", "sandboxes.createNamespace=false,sandboxes.namespace=there", []string{"namespace: there\n"}, []string{"kind: Namespace\n"}},
		{
			"monitoring", "adminListen=0.0.0.0:9090,networkPolicy.enabled=false,monitoring.podMonitor.enabled=true,monitoring.podMonitor.labels.team=a," +
				"monitoring.prometheusRule.enabled=true,monitoring.dashboard.enabled=true",
			[]string{
				"kind: PodMonitor\n", "- port: admin\n", "interval: 30s\n", "team: a\n", "kind: PrometheusRule\n", "- alert: SandgateProviderDown\n",
				`summary: "The provider of {{ $labels.instance }} does not work"` + "\n", "name: sandgate-dashboard\n", `grafana_dashboard: "1"` + "\n", `"title": "Sandgate",` + "\n",
			}, nil,
		},
		{"autoscaling", "autoscaling.enabled=true,replicas=1", []string{"kind: HorizontalPodAutoscaler\n", "minReplicas: 2\n", "kind: PodDisruptionBudget\n"}, []string{"\nreplicas:"}},
		{"no limit of memory", "resources.limits=null", nil, []string{"GOMEMLIMIT"}},
		{"the other provider", "provider=agentsandbox", nil, []string{"sandgate.dev/network"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			out, err := render(t, "--set", c.set)
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			for _, has := range c.has {
				if !strings.Contains(out, has) {
					t.Errorf("there is no %q", has)
				}
			}
			for _, not := range c.not {
				if strings.Contains(out, not) {
					t.Errorf("there is %q", not)
				}
			}
		})
	}
}
