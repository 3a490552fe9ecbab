package lifetime

import (
	"testing"
	"time"

	"github.com/sandgate/sandgate/server/lifetime/clocktest"
)

func TestClockDoesNotCountLeaps(t *testing.T) {
	const hour = time.Hour
	for name, c := range map[string]struct {
		run  func(f *clocktest.Clock, look func())
		want time.Duration
	}{
		"time passes":               {func(f *clocktest.Clock, _ func()) { f.Pass(3 * hour) }, 3 * hour},
		"one leap":                  {func(f *clocktest.Clock, _ func()) { f.Pass(hour); f.Set(25 * hour); f.Pass(hour) }, 2 * hour},
		"a leap before a long rest": {func(f *clocktest.Clock, look func()) { f.Set(25 * hour); look(); f.Pass(30 * hour) }, 30 * hour},
		"two leaps":                 {func(f *clocktest.Clock, look func()) { f.Set(hour); look(); f.Pass(hour); f.Set(hour) }, hour},
		"forward and back":          {func(f *clocktest.Clock, look func()) { f.Set(9 * hour); look(); f.Pass(hour); f.Set(-9 * hour) }, hour},
		"forward and half back":     {func(f *clocktest.Clock, look func()) { f.Set(8 * hour); look(); f.Set(-4 * hour); f.Pass(hour) }, hour},
		"back":                      {func(f *clocktest.Clock, _ func()) { f.Pass(hour); f.Set(-50 * hour) }, -49 * hour},
		"slewing":                   {func(f *clocktest.Clock, _ func()) { f.Pass(hour); f.Set(time.Second) }, hour + time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			f := clocktest.New()
			clock := NewClock(f.Read)
			stamp, _ := f.Read()
			f.Pass(time.Nanosecond)
			c.run(f, func() { clock.Now() })
			if got := clock.Since(stamp).Round(time.Microsecond); got != c.want {
				t.Errorf("the stamp is %v old, want %v", got, c.want)
			}
		})
	}
}

// A stamp from after a leap is as old as the clock says.
func TestClockCountsFromAfterALeap(t *testing.T) {
	f := clocktest.New()
	clock := NewClock(f.Read)
	f.Set(25 * time.Hour)
	stamp := clock.Now()
	f.Pass(time.Hour)
	if got := clock.Since(stamp); got != time.Hour {
		t.Errorf("the stamp is %v old", got)
	}
	for range 3 * maxLeaps {
		f.Set(time.Hour)
		clock.Now()
	}
	if got := clock.Since(stamp); got > time.Hour {
		t.Errorf("after more leaps than are kept it is %v old", got)
	}
}

// Each leap is counted, also one that takes another back. Time that passes is none.
func TestClockCountsLeaps(t *testing.T) {
	f := clocktest.New()
	clock := NewClock(f.Read)
	for _, by := range []time.Duration{time.Hour, -2 * time.Hour, time.Second, -time.Second, time.Hour} {
		f.Pass(time.Hour)
		f.Set(by)
		clock.Now()
	}
	if forward, back := clock.Leaps(); forward != 2 || back != 1 {
		t.Errorf("%d forward, %d back", forward, back)
	}
}
