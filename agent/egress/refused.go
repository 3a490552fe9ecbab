package egress

import (
	"fmt"
	"slices"
	"strings"
	"sync"
)

const (
	// maxRefused bounds the destinations that a Service remembers, and shownRefused
	// those that one message names.
	maxRefused   = 32
	shownRefused = 3
	// maxRefusedText bounds what a message says about one destination, in bytes.
	maxRefusedText = 240
)

// refused remembers the connections and names of programs that were refused.
type refused struct {
	mu    sync.Mutex
	count int64
	last  []refusedTarget // at most one of a target, the latest last
}

type refusedTarget struct {
	target string
	text   string
	at     int64 // the count with it
}

// add remembers one more. why is one line for people.
func (r *refused) add(target, why string) {
	target = printable(target)
	text := printable(why)
	if !strings.Contains(text, target) {
		text = target + ": " + text
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count++
	r.last = slices.DeleteFunc(r.last, func(t refusedTarget) bool { return t.target == target })
	if len(r.last) == maxRefused {
		r.last = slices.Delete(r.last, 0, 1)
	}
	r.last = append(r.last, refusedTarget{target: target, text: text[:min(len(text), maxRefusedText)], at: r.count})
}

// Refused returns how many connections and names of programs were refused so far.
func (s *Service) Refused() int64 {
	s.refused.mu.Lock()
	defer s.refused.mu.Unlock()
	return s.refused.count
}

// RefusedMessage returns a message for people about what was refused since the count
// was before, else "". It names a few destinations and counts the attempts.
func (s *Service) RefusedMessage(before int64) string {
	r := &s.refused
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.count <= before {
		return ""
	}
	var texts []string
	for _, t := range r.last {
		if t.at > before && len(texts) < shownRefused {
			texts = append(texts, t.text)
		}
	}
	return fmt.Sprintf("meanwhile the network refused programs of the sandbox: %s; refused attempts: %d", strings.Join(texts, "; "), r.count-before)
}

// printable makes a text safe for one line.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, text)
}
