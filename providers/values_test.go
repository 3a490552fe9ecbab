package providers

import (
	"testing"
	"time"
)

func TestQueryDueBy(t *testing.T) {
	now := time.Now()
	info := func(ttl, idle time.Duration) Info {
		return Info{Spec: Spec{TTL: ttl, IdleTTL: idle}, CreateTime: now.Add(-time.Hour), LastActivity: now.Add(-time.Minute)}
	}
	for name, c := range map[string]struct {
		info Info
		by   time.Time
		want bool
	}{
		"anything, when nothing is asked": {info(0, 0), time.Time{}, true},
		"what never ends":                 {info(0, 0), now.Add(time.Hour), false},
		"what has aged":                   {info(time.Hour, 0), now, true},
		"what ages a second later":        {info(time.Hour+time.Second, 0), now, false},
		"what was idle for long enough":   {info(2*time.Hour, time.Minute), now, true},
		"what is idle, but not yet long":  {info(2*time.Hour, 2*time.Minute), now, false},
	} {
		if got := (Query{DueBy: c.by}).Matches(c.info); got != c.want {
			t.Errorf("%s: %t, want %t", name, got, c.want)
		}
	}
}
