package egress

import (
	"os"
	"strings"
)

// searchDomains returns the domains that resolvers append to names, by a resolv.conf.
// Where the agent's name server replaces another one, resolvers have the other's.
func searchDomains(path string) []string {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	var domains []string
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		if len(words) == 0 || words[0] != "search" && words[0] != "domain" {
			continue
		}
		domains = nil // the last line counts
		for _, word := range words[1:] {
			if domain := strings.ToLower(strings.Trim(word, ".")); domain != "" {
				domains = append(domains, domain)
			}
		}
	}
	return domains
}

// searched returns the name to which a resolver may have appended a search domain, and
// an empty text if it has not.
func (s *Service) searched(host string) string {
	short := ""
	for _, domain := range s.searches {
		if name, ok := strings.CutSuffix(host, "."+domain); ok && (short == "" || len(name) < len(short)) {
			short = name
		}
	}
	return short
}
