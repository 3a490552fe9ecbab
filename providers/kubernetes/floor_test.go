package kubernetes

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/sandgate/sandgate/providers"
)

// sandboxFields are overrides of the sandbox's container.
func sandboxFields(fields string) string {
	return `{"containers": [{"name": "sandbox", ` + fields + `}]}`
}

// otherContainer are overrides that add a container like the sandbox's with more
// fields.
func otherContainer(fields string) string {
	return `{"containers": [{"name": "other", "image": "x",
		"resources": {"limits": {"cpu": "1", "memory": "1Gi", "ephemeral-storage": "1Gi"}},
		"securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}` + fields + `}]}`
}

func probe(action string) string { return `{"httpGet": {"port": 80` + action + `}}` }

// belowTheFloor are overrides that no template can have, and what the error must
// name.
var belowTheFloor = []struct{ name, overrides, says string }{
	// What the standard forbids.
	{"host network", `{"hostNetwork": true}`, "hostNetwork"},
	{"host pids", `{"hostPID": true}`, "hostPID"},
	{"host ipc", `{"hostIPC": true}`, "hostIPC"},
	{"sysctls", `{"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}}`, "kernel.msgmax"},
	{"SELinux type of the pod", `{"securityContext": {"seLinuxOptions": {"type": "spc_t"}}}`, "spc_t"},
	{"SELinux type of a container", sandboxFields(`"securityContext": {"seLinuxOptions": {"type": "spc_t"}}`), "spc_t"},
	{"SELinux user", `{"securityContext": {"seLinuxOptions": {"user": "system_u"}}}`, "seLinuxOptions"},
	{"AppArmor of the pod", `{"securityContext": {"appArmorProfile": {"type": "Unconfined"}}}`, "AppArmor"},
	{"AppArmor of a container", sandboxFields(`"securityContext": {"appArmorProfile": {"type": "Unconfined"}}`), "AppArmor"},
	{"seccomp of the pod", `{"securityContext": {"seccompProfile": {"type": "Unconfined"}}}`, "seccompProfile"},
	{"seccomp of a container", sandboxFields(`"securityContext": {"seccompProfile": {"type": "Unconfined"}}`), "seccompProfile"},
	{"privileged", sandboxFields(`"securityContext": {"privileged": true}`), "privileged"},
	{"root", sandboxFields(`"securityContext": {"runAsUser": 0, "runAsNonRoot": false}`), "runAsNonRoot"},
	{"root in a user namespace", `{"hostUsers": false, "containers": [{"name": "sandbox", "securityContext": {"runAsUser": 0}}]}`, "runAsUser=0"},
	{"escalation", sandboxFields(`"securityContext": {"allowPrivilegeEscalation": true}`), "allowPrivilegeEscalation"},
	{"a capability", sandboxFields(`"securityContext": {"capabilities": {"add": ["NET_RAW"]}}`), "capabilities"},
	{"capabilities kept", sandboxFields(`"securityContext": {"capabilities": {"drop": []}}`), "capabilities"},
	{"proc", sandboxFields(`"securityContext": {"procMount": "Unmasked"}`), "procMount"},
	{"Windows", `{"os": {"name": "windows"}}`, "windows"},
	{"host process", `{"securityContext": {"windowsOptions": {"hostProcess": true}}}`, "hostProcess"},
	{"host port", sandboxFields(`"ports": [{"containerPort": 1, "hostPort": 1}]`), "hostPort"},
	{"liveness of another host", sandboxFields(`"livenessProbe": ` + probe(`, "host": "169.254.169.254"`)), "169.254.169.254"},
	{"readiness of another host", sandboxFields(`"readinessProbe": {"tcpSocket": {"port": 80, "host": "10.0.0.1"}}`), "10.0.0.1"},
	{"start of another host", sandboxFields(`"startupProbe": ` + probe(`, "host": "localhost"`)), "localhost"},
	{"hook to another host", sandboxFields(`"lifecycle": {"preStop": ` + probe(`, "host": "10.0.0.1"`) + `}`), "10.0.0.1"},
	{"hostPath", `{"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}`, "hostPath"},
	{"nfs", `{"volumes": [{"name": "v", "nfs": {"server": "s", "path": "/"}}]}`, "nfs"},
	{"iscsi", `{"volumes": [{"name": "v", "iscsi": {"targetPortal": "t", "iqn": "i", "lun": 0}}]}`, "iscsi"},
	{"flexVolume", `{"volumes": [{"name": "v", "flexVolume": {"driver": "d"}}]}`, "flexVolume"},
	{"gitRepo", `{"volumes": [{"name": "v", "gitRepo": {"repository": "r"}}]}`, "gitRepo"},
	{"another container as root", otherContainer(`, "securityContext": {"runAsUser": 0}`), "other"},
	{"another container without a context", `{"containers": [{"name": "other", "image": "x"}]}`, "other"},
	// What the standard leaves open.
	{"root group", sandboxFields(`"securityContext": {"runAsGroup": 0}`), "runAsGroup"},
	{"root group of the pod's volumes", `{"securityContext": {"fsGroup": 0}}`, "fsGroup"},
	{"supplemental root group", `{"securityContext": {"supplementalGroups": [0]}}`, "supplementalGroups"},
	{"shared processes", `{"shareProcessNamespace": true}`, "shareProcessNamespace"},
	{"restart", `{"restartPolicy": "Always"}`, "restartPolicy"},
	{"a node", `{"nodeName": "n"}`, "nodeName"},
	{"ephemeral containers", `{"ephemeralContainers": [{"name": "e", "image": "x", "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}}]}`, "ephemeralContainers"},
	{"token", `{"automountServiceAccountToken": true}`, "automountServiceAccountToken"},
	{"token removed", `{"automountServiceAccountToken": null}`, "automountServiceAccountToken"},
	{"projected token", `{"volumes": [{"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}]}`, "token"},
	{"projected certificate", `{"volumes": [{"name": "t", "projected": {"sources": [{"podCertificate": {"signerName": "s", "keyType": "ED25519"}}]}}]}`, "certificate"},
	{"the server's account", `{"serviceAccountName": "server"}`, "serviceAccountName"},
	{"the server's account, by the field's old name", `{"serviceAccount": "server"}`, "serviceAccountName"},
	{"a Secret as a volume", `{"volumes": [{"name": "v", "secret": {"secretName": "tls"}}]}`, `"tls"`},
	{"a Secret in a projected volume", `{"volumes": [{"name": "v", "projected": {"sources": [{"secret": {"name": "tls"}}]}}]}`, `"tls"`},
	{"a Secret for a driver", `{"volumes": [{"name": "v", "csi": {"driver": "d", "nodePublishSecretRef": {"name": "tls"}}}]}`, `"tls"`},
	{"a Secret as a variable", sandboxFields(`"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "tls", "key": "k"}}}]`), `"tls"`},
	{"a Secret as all variables", sandboxFields(`"envFrom": [{"secretRef": {"name": "tls"}}]`), `"tls"`},
	{"device", sandboxFields(`"volumeDevices": [{"name": "v", "devicePath": "/dev/x"}]`), "volumeDevices"},
	{"no limits", sandboxFields(`"resources": {"limits": {"memory": null}}`), "memory"},
	{"another container without limits", otherContainer(`, "resources": {}`), "resources"},
	// What makes it a sandbox.
	{"writable root", sandboxFields(`"securityContext": {"readOnlyRootFilesystem": false}`), "readOnlyRootFilesystem"},
	{"another command", sandboxFields(`"command": ["sleep"]`), "command"},
	{"arguments", sandboxFields(`"args": ["x"]`), "args"},
	{"hook", sandboxFields(`"lifecycle": {"postStart": {"exec": {"command": ["x"]}}}`), "postStart"},
	{"agent hidden", sandboxFields(`"volumeMounts": [{"mountPath": "/sandgate", "name": "sandgate-disk"}]`), "/sandgate"},
	{"sandbox removed", `{"containers": [{"name": "sandbox", "$patch": "delete"}]}`, "sandbox"},
	{"agent removed", `{"initContainers": [{"name": "sandgate-agent", "$patch": "delete"}]}`, "sandgate-agent"},
}

// TestS5_14_SecurityFloor: what overrides may change, and what no template can.
func TestS5_14_SecurityFloor(t *testing.T) {
	for _, c := range belowTheFloor {
		t.Run(c.name, func(t *testing.T) {
			options := `{"pod_overrides": ` + c.overrides + `}`
			_, err := planOf(t, withOptions(options))
			if !errors.Is(err, providers.ErrForbidden) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("create: %v", err)
			}
			err = (&Provider{account: "server"}).CheckOptions(json.RawMessage(options), []string{"labels"})
			if !errors.Is(err, providers.ErrInvalid) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("at the start of the server: %v", err)
			}
		})
	}
	for _, c := range []struct{ name, options string }{
		{"annotations", `{"annotations": {"container.apparmor.security.beta.kubernetes.io/sandbox": "unconfined"}}`},
		{"volumes", `{"volumes": [{"name": "v", "secret": {"secretName": "tls"}}]}`},
		{"service_account", `{"service_account": "server"}`},
		{"init_containers", `{"init_containers": [{"name": "i", "image": "x", "envFrom": [{"secretRef": {"name": "tls"}}]}]}`},
	} {
		t.Run("option "+c.name, func(t *testing.T) {
			if _, err := planOf(t, withOptions(c.options)); !errors.Is(err, providers.ErrForbidden) {
				t.Errorf("create: %v", err)
			}
		})
	}
}

func TestOverridesAboveTheFloor(t *testing.T) {
	for _, c := range []struct{ name, options string }{
		{"token where it is said", `{"mount_service_account_token": true}`},
		{"writable root where it is said", `{"writable_root": true}`},
		{"another account", `{"service_account": "mine", "mount_service_account_token": true}`},
		{"another user", `{"pod_overrides": {"containers": [{"name": "sandbox", "securityContext": {"runAsUser": 5}}]}}`},
		{"a user namespace, a variable", `{"pod_overrides": {"hostUsers": false, "containers": [{"name": "sandbox", "env": [{"name": "A", "value": "b"}]}]}}`},
		{"a probe of the sandbox's own", `{"pod_overrides": ` + sandboxFields(`"readinessProbe": `+probe("")) + `}`},
		{"another container", `{"pod_overrides": ` + otherContainer("") + `}`},
		{"a Secret that the template lists", `{"secrets": ["ca"], "volumes": [{"name": "v", "secret": {"secretName": "ca"}}]}`},
		{"volumes of other kinds", `{"volumes": [{"name": "a", "configMap": {"name": "c"}}, {"name": "b", "persistentVolumeClaim": {"claimName": "c"}}]}`},
	} {
		if _, err := planOf(t, withOptions(c.options)); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if err := new(Provider).CheckOptions(json.RawMessage(c.options), nil); err != nil {
			t.Errorf("%s, at the start of the server: %v", c.name, err)
		}
	}
}

// A server that runs as the account of pods that name none may have sandboxes of
// that account, which get no token.
func TestServerAsTheDefaultAccount(t *testing.T) {
	p := &Provider{account: defaultAccount}
	if err := p.CheckOptions(nil, nil); err != nil {
		t.Error(err)
	}
	for _, options := range []string{`{"service_account": "default"}`, `{"mount_service_account_token": true}`} {
		if err := p.CheckOptions(json.RawMessage(options), nil); !errors.Is(err, providers.ErrInvalid) {
			t.Errorf("%s: %v", options, err)
		}
	}
}

func TestPodHasTheFloor(t *testing.T) {
	pod := podOf(t, withOptions(`{"init_containers": [{"name": "mine", "image": "x"}]}`))
	if *pod.Spec.AutomountServiceAccountToken || *pod.Spec.EnableServiceLinks || pod.Spec.RestartPolicy != corev1.RestartPolicyNever {
		t.Errorf("pod %+v", pod.Spec)
	}
	all := slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers)
	if len(all) != 3 {
		t.Fatalf("%d containers", len(all))
	}
	for _, c := range all {
		s := c.SecurityContext
		if !*s.RunAsNonRoot || *s.AllowPrivilegeEscalation || *s.Privileged || s.Capabilities.Drop[0] != "ALL" || !*s.ReadOnlyRootFilesystem {
			t.Errorf("%s: %+v", c.Name, s)
		}
		limits := c.Resources.Limits
		if limits.Memory().IsZero() || limits.Cpu().IsZero() || limits.StorageEphemeral().IsZero() {
			t.Errorf("%s: limits %v", c.Name, limits)
		}
	}
	if pod.Spec.DNSPolicy != corev1.DNSNone {
		t.Errorf("no network, but names are looked up: %s", pod.Spec.DNSPolicy)
	}
}

// TestUnstatedLimitsAreDefaultedAndRecorded: a limit that nobody states is the default one, and it is
// recorded.
func TestUnstatedLimitsAreDefaultedAndRecorded(t *testing.T) {
	want := DefaultResources()
	want.MemoryBytes, want.MaxProcesses = 1<<28, 0 // a pod cannot have the latter
	spec := withOptions("")
	spec.Resources.MemoryBytes = want.MemoryBytes
	pl, err := planOf(t, spec)
	if err != nil {
		t.Fatal(err)
	}
	limits := pl.makePod().Spec.Containers[0].Resources.Limits
	if pl.spec.Resources != want || limits.Memory().Value() != want.MemoryBytes || limits.Cpu().MilliValue() != int64(want.CPUMillis) ||
		limits.StorageEphemeral().Value() != want.DiskBytes+agentVolumeSize {
		t.Errorf("recorded %+v, limits %v, want %+v", pl.spec.Resources, limits, want)
	}
}
