package serve

import "testing"

func TestBeyondLoopback(t *testing.T) {
	for listen, want := range map[string]bool{
		"127.0.0.1:7777": false, "127.9.9.9:1": false, "[::1]:7777": false, "localhost:7777": false, "unix:///run/s.sock": false, "nonsense": false,
		"0.0.0.0:7777": true, ":7777": true, "[::]:7777": true, "10.1.2.3:7777": true, "example.org:7777": true,
	} {
		if got := beyondLoopback(listen); got != want {
			t.Errorf("%s: %v", listen, got)
		}
	}
}

func TestConfigFileOfTheLocalProvider(t *testing.T) {
	c := configOf(t, "local: {registry_auth: /etc/auth.json, registries: [{name: docker.io, mirrors: [\"mirror.example:5000\"]}, {name: \"mirror.example:5000\", plain_http: true}]}\n")
	if l := c.Local; l.RegistryAuth != "/etc/auth.json" || len(l.Registries) != 2 || l.Registries[0].Mirrors[0] != l.Registries[1].Name || !l.Registries[1].PlainHTTP {
		t.Errorf("registries: %+v", l)
	}
	c = configOf(t, "local: {max_memory: 1, max_processes: 2, min_free: 3, disk_overcommit: 1.5}\n", "--local-min-free=30")
	if c.Local.MaxMemory != 1 || c.Local.MaxProcesses != 2 || c.Local.MinFree != 30 || c.Local.DiskOvercommit != 1.5 {
		t.Errorf("%+v", c.Local)
	}
}
