package serve

import (
	"github.com/sandgate/sandgate/server/events"
	"github.com/sandgate/sandgate/server/webhook"
)

type webhookConfig struct {
	Name       string   `yaml:"name" help:"1 to 63 of a-z, 0-9 and \"-\"; metrics and stored progress have it"`
	URL        string   `yaml:"url" help:"where messages are sent: https://HOST[:PORT]/PATH, or http:// on loopback; redirects are not followed"`
	PlainHTTP  bool     `yaml:"plain_http" help:"allow http:// to other hosts"`
	SecretFile string   `yaml:"secret_file" help:"file of the secrets that sign messages, one in a line: whsec_ and 24 to 64 bytes in base64; up to 4; read for each attempt"`
	Types      []string `yaml:"types" help:"types of events: created, state_changed, expiring, ended, and always resync (default all)"`
	Tenants    []string `yaml:"tenants" help:"tenants whose events are sent (default all)"`
}

func endpoints(list []webhookConfig) []webhook.Endpoint {
	var all []webhook.Endpoint
	for _, c := range list {
		e := webhook.Endpoint{Name: c.Name, URL: c.URL, PlainHTTP: c.PlainHTTP, SecretFile: c.SecretFile, Tenants: c.Tenants}
		for _, t := range c.Types {
			e.Types = append(e.Types, events.Type(t))
		}
		all = append(all, e)
	}
	return all
}
