package quota

import (
	"sync"
	"time"
)

// Streams bounds the concurrent streams and the rate of commands of this server.
type Streams struct {
	now func() time.Time

	mu      sync.Mutex
	config  *Config
	running map[Owner]int64
	rates   map[Owner]*bucket
}

// NewStreams returns a Streams without any.
func NewStreams(config Config) *Streams {
	return &Streams{now: time.Now, config: &config, running: make(map[Owner]int64), rates: make(map[Owner]*bucket)}
}

// Configure replaces the quotas. What runs goes on.
func (s *Streams) Configure(config Config) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.config = &config
}

// Enter counts a stream until leave. The error is an *Exceeded.
func (s *Streams) Enter(o Owner, command bool) (leave func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	scopes := o.scopes()[1:] // The server as a whole has none.
	for _, scope := range scopes {
		l := s.config.of(scope)
		if n := s.running[scope]; l.MaxStreams > 0 && n >= l.MaxStreams {
			return nil, &Exceeded{Quota: maxStreams, Owner: scope, Limit: l.MaxStreams, Used: n, Asked: 1}
		}
		if n := l.CommandsPerMinute; command && n > 0 {
			if b := s.rates[scope].filled(n, now); b.Tokens < 1 {
				return nil, b.exceeded(commandsPerMinute, scope, n)
			}
		}
	}
	for _, scope := range scopes {
		s.running[scope]++
		if n := s.config.of(scope).CommandsPerMinute; command && n > 0 {
			b := s.rates[scope].filled(n, now)
			b.Tokens--
			s.rates[scope] = &b
		}
	}
	return func() { s.leave(scopes) }, nil
}

func (s *Streams) leave(scopes []Owner) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, scope := range scopes {
		if s.running[scope]--; s.running[scope] > 0 {
			continue
		}
		delete(s.running, scope)
		n := s.config.of(scope).CommandsPerMinute
		if b := s.rates[scope]; b != nil && (n == 0 || b.filled(n, s.now()).Tokens >= float64(n)) {
			delete(s.rates, scope)
		}
	}
}

// used returns what an owner uses of a quota of this server.
func (s *Streams) used(o Owner, quota string) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if quota == maxStreams {
		return s.running[o]
	}
	n := s.config.of(o).CommandsPerMinute
	return n - int64(s.rates[o].filled(n, s.now()).Tokens)
}
