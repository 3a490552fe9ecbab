package serve

import (
	"bytes"
	"crypto/rand"
	"crypto/x509"
	"math/big"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"
)

// checkConfig runs "sandgate config check".
func checkConfig(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	cmd := NewConfigCommand()
	var out, errs bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&errs)
	cmd.SetArgs(append([]string{"check"}, args...))
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	err = cmd.ExecuteContext(t.Context())
	return out.String(), errs.String(), err
}

// What serve refuses, check refuses too, and names the key.
func TestCheckRefusesWhatServeRefuses(t *testing.T) {
	ca, other := newTestAuthority(t), newTestAuthority(t)
	cert, key := ca.sign(t, &x509.Certificate{})
	for name, c := range map[string]struct{ text, want string }{
		"unknown key":      {"limits: {max_tiemout: 1h}", "line 1: limits.max_tiemout: unknown key; did you mean max_timeout?"},
		"far key":          {"reaper: {zzzzzzzzz: 1}", "line 1: reaper.zzzzzzzzz: unknown key; there are interval"},
		"two documents":    {"log: {level: info}\n---\nlog: {level: warn}", "more than one YAML document"},
		"list":             {"templates: {name: a}", "line 1: templates: must be a list"},
		"text":             {"listen: [a]", "line 1: listen: must be a text"},
		"duration":         {"limits:\n  max_ttl: 5", "line 2: limits.max_ttl: \"5\" must be a duration"},
		"integer":          {"templates: [{name: default, pool: many}]", "templates[0].pool: \"many\" must be an integer"},
		"network":          {"templates: [{name: default, network: all}]", "templates[0].network: \"all\" is none of none, proxy, full"},
		"provider":         {"provider: vm", "provider (--provider): \"vm\" is none of local, docker, kubernetes, agentsandbox"},
		"level":            {"log: {level: loud}", "log.level (--log-level): \"loud\" is none of"},
		"negative limit":   {"limits: {max_ttl: -1s}", "limits.max_ttl: -1s is less than 0s"},
		"message size":     {"limits: {max_message_bytes: 1}", "limits.max_message_bytes: 1 is less than 65536"},
		"reaper":           {"reaper: {interval: 1m}", "reaper.interval: 1m0s is more than 30s"},
		"quota":            {"quotas: {tenant: {max_sandboxes: -1}}", "quotas.tenant.max_sandboxes: -1 is less than 0"},
		"override":         {"quotas: {overrides: [{tenant: a, quota: {max_streams: -2}}]}", "quotas.overrides[0].quota.max_streams: -2 is less than -1"},
		"override's owner": {"quotas: {overrides: [{quota: {max_streams: 2}}]}", "quotas: overrides[0]: tenant is missing"},
		"role":             {"auth: {oidc: [{issuer: 'https://a.example', audiences: [a], tenant: t, role_claim: g, roles: {x: root}}]}", "auth.oidc[0].roles.x: \"root\" is none of reader, user, operator"},
		"one role":         {"auth: {oidc: [{issuer: 'https://a.example', audiences: [a], tenant: t, role: admin}]}", "auth.oidc[0].role: \"admin\" is none of reader, user, operator"},
		"account's role":   {"auth: {kubernetes: {audience: a, accounts: [{namespace: a, name: b, role: x}]}}", "auth.kubernetes.accounts[0].role: \"x\" is none of"},
		"issuer":           {"auth: {oidc: [{issuer: 'http://a.example', audiences: [a], tenant: t}]}", "auth.oidc: issuer"},
		"issuer's CA":      {"auth: {oidc: [{issuer: 'https://a.example', audiences: [a], tenant: t, ca_file: /nonexistent}]}", "auth.oidc"},
		"accounts":         {"auth: {kubernetes: {accounts: [{namespace: a, name: b}]}}", "auth.kubernetes: accounts need an audience"},
		"no accounts":      {"auth: {kubernetes: {audience: a}}", "auth.kubernetes: at least one account"},
		"tokens":           {"auth: {tokens_file: /nonexistent}", "tokens"},
		"tokens' content":  {"auth: {tokens_file: BROKEN}", "tokens file"},
		"half of TLS":      {"tls: {cert: /nonexistent}", "TLS needs both --tls-cert and --tls-key"},
		"CA alone":         {"tls: {client_ca: /nonexistent}", "TLS needs both --tls-cert and --tls-key"},
		"CRL alone":        {"tls: {cert: BROKEN, key: BROKEN, client_crl: BROKEN}", "--tls-client-crl needs --tls-client-ca"},
		"CRL":              {"tls: {cert: CERT, key: KEY, client_ca: CERT, client_crl: BROKEN}", "tls.client_crl (--tls-client-crl): holds no revocation list"},
		"CRL of another":   {"tls: {cert: CERT, key: KEY, client_ca: CERT, client_crl: CRL}", "tls.client_crl (--tls-client-crl): revocation list 1 of 1: the list of \"CN=authority\" is not signed by a client authority"},
		"certificate":      {"tls: {cert: BROKEN, key: BROKEN}", "tls"},
		"spec secret":      {"spec_secret_file: BROKEN", "must hold at least 16 bytes"},
		"pprof":            {"admin: {pprof: true}", "--pprof needs --admin-listen"},
		"pprof everywhere": {"admin: {listen: '0.0.0.0:0', pprof: true}", "--pprof exposes the server's memory"},
		"admin address":    {"admin: {listen: nowhere}", "nowhere"},
		"audit directory":  {"audit: {file: /nonexistent/audit.log}", "/nonexistent"},
		"secret":           {"secrets: [{name: a, tenants: ['*'], hosts: ['*']}]", "secret a: it needs one of env and file"},
		"access":           {"access: {root_dir: relative}", "access.root_dir"},
		"template":         {"templates: [{name: A}]", `template "A"`},
		"templates":        {"templates: [{name: a}, {name: a}]", `template "a": given twice`},
		"allow":            {"templates: [{name: a, allow: [colour]}]", "allow"},
		"options":          {"templates: [{name: a, provider_options: {colour: 1}}]", `template "a": provider_options: unknown field "colour"`},
		"rule":             {"templates: [{name: a, egress: [{hosts: ['*.*']}]}]", `template "a": egress`},
		"no spec secret":   {"templates: [{name: a, egress: [{hosts: [a.example], methods: [GET]}]}]", "spec_secret_file"},
		"URLs' listener":   {"preview: {domain: a.example}", "preview.listen (--preview-listen): the other options of previews need --preview-listen"},
		"URLs everywhere":  {"preview: {listen: '0.0.0.0:0', domain: a.example}\nspec_secret_file: SECRET", "preview.listen (--preview-listen): --preview-listen 0.0.0.0:0: refusing to serve URLs"},
		"URLs' domain":     {"preview: {listen: ':0', domain: '*.a.example'}\nspec_secret_file: SECRET", "preview.domain (--preview-domain): "},
		"URLs' key":        {"preview: {listen: ':0', cert: BROKEN, key: BROKEN}\nspec_secret_file: SECRET", "preview.cert (--preview-cert): "},
		"URLs' secret":     {"preview: {listen: ':0'}", "--preview-listen needs --spec-secret-file"},
		"webhook":          {"webhooks: [{name: a, url: 'http://a.example', secret_file: BROKEN}]", "webhook a: url must be https"},
		"webhook's secret": {"webhooks: [{name: a, url: 'https://a.example', secret_file: BROKEN}]", "webhooks[0].secret_file: secret_file: each line"},
		"no webhook":       {"webhooks: [{name: a, url: 'https://a.example', secret_file: /nonexistent}]", "webhooks[0].secret_file: open /nonexistent"},
		"agent from":       {"kubernetes: {agent_from: [x]}", "connect to agents"},
		"agent port":       {"kubernetes: {agent_port: 80}", "kubernetes.agent_port (--kubernetes-agent-port): 80 is less than 1024"},
	} {
		t.Run(name, func(t *testing.T) {
			kubeconfig, _ := emptyCluster(t)
			crl, err := x509.CreateRevocationList(rand.Reader, &x509.RevocationList{Number: big.NewInt(1), NextUpdate: time.Now().Add(time.Hour)}, other.cert, other.key)
			if err != nil {
				t.Fatal(err)
			}
			file := writeFile(t, "c.yaml", strings.NewReplacer("BROKEN", writeFile(t, "broken", "x"), "SECRET", writeFile(t, "secret", strings.Repeat("s", 32)),
				"CERT", writeFile(t, "cert", string(cert)), "KEY", writeFile(t, "key", string(key)), "CRL", writeFile(t, "crl", string(crl))).Replace(c.text))
			args := []string{"--config", file, "--provider", "kubernetes", "--kubernetes-kubeconfig", kubeconfig, "--agent", writeFile(t, "agent", "agent")}
			if name == "provider" {
				args = args[:2]
			}
			stdout, stderr, err := checkConfig(t, args...)
			if err == nil || stdout != "" || !strings.Contains(stderr, c.want) {
				t.Errorf("check: %v, %q, want %q in it", err, stderr, c.want)
			}
			var log bytes.Buffer
			args = append(args, "--state-dir", t.TempDir())
			if !strings.HasPrefix(c.text, "listen:") {
				args = append(args, "--listen", "127.0.0.1:0")
			}
			if err := run(t.Context(), &log, args...); err == nil || strings.Contains(log.String(), "serves at") {
				t.Errorf("serve: %v, %s", err, log.String())
			}
		})
	}
}

// What only the address decides is refused without opening it.
func TestCheckRefusesFlags(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"exposed":       {[]string{"--listen=0.0.0.0:7777"}, "listen (--listen): 0.0.0.0:7777: refusing to listen beyond this machine"},
		"address":       {[]string{"--listen=7777"}, `"7777" must be HOST:PORT or unix:///path`},
		"port":          {[]string{"--listen=127.0.0.1:99999"}, "the port must be a number"},
		"socket":        {[]string{"--listen=unix:run/s.sock"}, "the socket's path must be absolute"},
		"profile":       {[]string{"--local-profile=lax"}, `local.profile (--local-profile): "lax" is none of default, restricted`},
		"overcommit":    {[]string{"--local-disk-overcommit=0.5"}, "local: disk overcommit 0.5 is less than 1"},
		"gvisor":        {[]string{"--local-runtime=runsc", "--local-transport=socket"}, `use transport "exec"`},
		"cgroup":        {[]string{"--local-cgroup=x"}, `cgroup parent "x"`},
		"agent":         {[]string{"--agent=/nonexistent"}, "--agent: open /nonexistent"},
		"kubeconfig":    {[]string{"--provider=kubernetes", "--kubernetes-kubeconfig=/nonexistent"}, "kubernetes.kubeconfig"},
		"docker":        {[]string{"--provider=docker", "--docker-transport=tcp"}, "docker.transport (--docker-transport)"},
		"no file":       {[]string{"/nonexistent"}, "--config: open /nonexistent"},
		"several":       {[]string{"--drain=-1s", "--audit-max-size=-1"}, "audit.max_size_mib (--audit-max-size): -1 is less than 0\nshutdown.drain (--drain): -1s is less than 0s"},
		"several, deep": {[]string{"--listen=7777", "--pprof"}, "listen (--listen): \"7777\" must be HOST:PORT or unix:///path\nadmin.pprof (--pprof): --pprof needs"},
	} {
		t.Run(name, func(t *testing.T) {
			_, stderr, err := checkConfig(t, c.args...)
			if err == nil || !strings.Contains(stderr, c.want) {
				t.Errorf("%v, %q, want %q in it", err, stderr, c.want)
			}
		})
	}
	if _, _, err := checkConfig(t, "a", "--config", "b"); err == nil || !strings.Contains(err.Error(), "both FILE and --config") {
		t.Errorf("two files: %v", err)
	}
	context := []string{"--provider=kubernetes", "--kubernetes-kubeconfig=" + kubeconfig(t, "https://127.0.0.1:1"), "--kubernetes-context=other"}
	if _, stderr, err := checkConfig(t, context...); err == nil || !strings.Contains(stderr, `has no context "other"`) {
		t.Errorf("a context: %v, %s", err, stderr)
	}
}

// Configurations for other machines pass: of a cluster that is not this one's, and
// with files that are not here.
func TestCheckAccepts(t *testing.T) {
	raw, err := os.ReadFile("../../../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	accepted := map[string]string{
		"empty": "", "full": fullConfig, "page": exampleOf(pageHead),
		"cluster": "auth: {kubernetes: {audience: a, accounts: [{namespace: a, name: b}]}}\nprovider: kubernetes\ntls: {cert: /c, key: /k}\nlisten: ':7777'",
		"merge":   "access: &a {root_dir: /a}\ntemplates: [{name: a, access: {<<: *a, virtual: true}}, {name: b, access: {<<: [*a], root_dir: /b}}]",
		"empties": "listen: ''\nprovider:\nlog: {level: ''}\nshutdown:\n",
		"agents":  "provider: agentsandbox\ntemplates: [{name: default, provider_options: {sandbox_template: a}}]",
		"docker":  "provider: docker\ndocker: {transport: socket}",
		"webhook": "webhooks: [{name: a, url: 'https://a.example', secret_file: /nonexistent}]",
		"URLs":    "preview: {listen: '0.0.0.0:7780', domain: a.example, cert: /nonexistent.crt, key: /nonexistent.key}",
		"no host": "preview: {listen: ':7780'}",
	}
	for i, b := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(raw), -1) {
		if strings.Contains(b[1], "auth:") {
			accepted["operations "+string(rune('a'+i))] = b[1]
		}
	}
	if len(accepted) < 12 {
		t.Errorf("%d configurations", len(accepted))
	}
	for name, text := range accepted {
		t.Run(name, func(t *testing.T) {
			args := []string{writeFile(t, "c.yaml", text), "--skip-files"}
			if name == "full" {
				text = strings.ReplaceAll(text, "provider_options: {a: {b: 1}}", "")
				args[0] = writeFile(t, "c.yaml", text)
			}
			stdout, stderr, err := checkConfig(t, args...)
			if note := strings.Contains(stderr, "note: each server counts "); note != strings.Contains(text, "max_streams") {
				t.Errorf("a note about quotas: %t", note)
			}
			if err != nil || stdout != "ok\n" || strings.Count(stderr, "\n") > 1 || stderr != "" && !strings.HasPrefix(stderr, "note: ") {
				t.Errorf("%v, %q, %q", err, stdout, stderr)
			}
		})
	}
}

// An operator learns which quotas several servers do not hold together.
func TestCheckNamesQuotasOfEachServer(t *testing.T) {
	for text, want := range map[string]string{
		"quotas: {tenant: {max_sandboxes: 1, creations_per_minute: 1}}":                                 "",
		"quotas: {principal: {max_streams: 1}}":                                                         "note: each server counts max_streams alone, so two servers allow twice as much\n",
		"quotas: {tenant: {max_streams: 1}, overrides: [{tenant: a, quota: {commands_per_minute: 1}}]}": "note: each server counts commands_per_minute and max_streams alone, so two servers allow twice as much\n",
		"quotas: {overrides: [{tenant: a, quota: {max_streams: -1}}]}":                                  "",
	} {
		if stdout, stderr, err := checkConfig(t, writeFile(t, "c.yaml", text)); err != nil || stdout != "ok\n" || stderr != want {
			t.Errorf("%s: %v, %q, %q", text, err, stdout, stderr)
		}
	}
}

func exampleOf(page string) string {
	_, example, _ := strings.Cut(page, "```yaml\n")
	example, _, _ = strings.Cut(example, "```")
	return example
}
