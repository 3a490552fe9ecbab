package kubernetes

import (
	"strings"
	"testing"

	core "k8s.io/api/core/v1"

	"github.com/sandgate/sandgate/providers"
)

// A sandbox has the digest that the kubelet reports with a name. An image that was
// loaded by hand has none, as those of the test cluster.
func TestImageDigest(t *testing.T) {
	t.Parallel()
	same := func(t *testing.T, p providers.Provider, name, container string, pods []core.Pod) {
		t.Helper()
		id := ""
		for _, pod := range pods {
			for _, c := range pod.Status.ContainerStatuses {
				if c.Name == container {
					id = c.ImageID
				}
			}
		}
		_, want, _ := strings.Cut(id, "@")
		t.Logf("the kubelet reports %q", id)
		info, err := p.Get(limit(t), name)
		if id == "" || err != nil || info.ImageDigest != want {
			t.Errorf("get: the sandbox has %q, want %q, %v", info.ImageDigest, want, err)
		}
		page, err := p.List(limit(t), providers.Query{Limit: 10})
		if err != nil || len(page.Sandboxes) != 1 || page.Sandboxes[0].ImageDigest != want {
			t.Errorf("list: %+v, want %q, %v", page, want, err)
		}
	}
	t.Run("a plain pod", func(t *testing.T) {
		t.Parallel()
		r := newRawHarness(t)
		r.made(t, "one", rawSpec("one", ""))
		same(t, r, "one", "sandbox", []core.Pod{*r.pod(t, r.config.Namespace, "one")})
	})
	t.Run("a pod of agent-sandbox", func(t *testing.T) {
		t.Parallel()
		client, _ := clientset(t)
		needAgentSandbox(t, client)
		r := newASHarness(t)
		r.template("plain", restricted(image()), nil)
		p := r.open(t)
		t.Cleanup(func() {
			if err := p.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		})
		asCreate(t, p, "one", asSpec(`{"sandbox_template": "plain"}`))
		same(t, p, "one", "main", r.pods())
	})
}
