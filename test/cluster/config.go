package main

import (
	"bytes"
	"os"
	"path/filepath"
	"text/template"
)

// files are what the components read. CNI knows no network policies and gives no
// host ports: a bridge, and an address for each pod.
var files = map[string]string{
	"containerd/config.toml": `version = 2
root = "{{.Path "containerd/root"}}"
state = "{{.Path "containerd/state"}}"
[grpc]
  address = "{{.Path "containerd.sock"}}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{{.Path "containerd/opt"}}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{{.Pause}}"
  restrict_oom_score_adj = true
  stream_server_address = "127.0.0.1"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      Root = "{{.Path "containerd/runc"}}"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{{.Path "cni"}}"
`,
	"cni/10-pods.conflist": `{
  "cniVersion": "0.4.0",
  "name": "{{.Name}}",
  "plugins": [{
    "type": "bridge",
    "bridge": "{{.Name}}",
    "isGateway": true,
    "ipMasq": false,
    "ipam": {
      "type": "host-local",
      "dataDir": "{{.Path "cni/addresses"}}",
      "ranges": [[{"subnet": "{{.Subnet}}"}]]
    }
  }]
}
`,
	"kubelet.yaml": `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: 127.0.0.1
port: {{.Ports.Kubelet}}
healthzBindAddress: 127.0.0.1
healthzPort: {{.Ports.KubeletHealth}}
tlsCertFile: {{.Path "pki/kubelet.crt"}}
tlsPrivateKeyFile: {{.Path "pki/kubelet.key"}}
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: false}
  x509: {clientCAFile: {{.Path "pki/ca.crt"}}}
authorization: {mode: AlwaysAllow}
containerRuntimeEndpoint: unix://{{.Path "containerd.sock"}}
cgroupDriver: cgroupfs
cgroupRoot: /{{.Name}}
failCgroupV1: false
failSwapOn: false
oomScoreAdj: 0
localStorageCapacityIsolation: false
makeIPTablesUtilChains: false
podLogsDir: {{.Path "pods"}}
volumePluginDir: {{.Path "volume-plugins"}}
maxPods: 250
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
evictionHard: {memory.available: 50Mi, nodefs.available: 1%, nodefs.inodesFree: 1%, imagefs.available: 1%}
`,
}

func (c *cluster) writeFiles() error {
	values := values{state: c.state, Pause: pauseImage, dir: c.dir}
	for name, text := range files {
		parsed, err := template.New(name).Parse(text)
		if err != nil {
			return err
		}
		var out bytes.Buffer
		if err := parsed.Execute(&out, values); err != nil {
			return err
		}
		path := c.path(name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, out.Bytes(), 0o644); err != nil {
			return err
		}
	}
	return nil
}

type values struct {
	state
	Pause string
	dir   string
}

// Path is for the templates.
func (v values) Path(name string) string { return filepath.Join(v.dir, name) }
