//go:build linux

package main

import (
	"bytes"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestTrend(t *testing.T) {
	for _, c := range []struct {
		what          string
		times, values []float64
		rise, mean    float64
	}{
		{"nothing", nil, nil, 0, 0},
		{"one sample", []float64{3}, []float64{5}, 0, 5},
		{"one moment", []float64{3, 3}, []float64{5, 7}, 0, 6},
		{"constant", []float64{0, 1, 2}, []float64{5, 5, 5}, 0, 5},
		{"a line", []float64{0, 1, 2, 3}, []float64{1, 3, 5, 7}, 6, 4},
		{"unevenly sampled", []float64{0, 1, 10}, []float64{0, 2, 20}, 20, 22.0 / 3},
		{"falling", []float64{0, 2}, []float64{4, 1}, -3, 2.5},
		{"a bump in the middle", []float64{0, 1, 2, 3, 4}, []float64{1, 1, 9, 1, 1}, 0, 2.6},
	} {
		if rise, mean := trend(c.times, c.values); math.Abs(rise-c.rise) > 1e-9 || math.Abs(mean-c.mean) > 1e-9 {
			t.Errorf("%s: rise %g, mean %g, want %g, %g", c.what, rise, mean, c.rise, c.mean)
		}
	}
}

// Under noise, the rise is off by at most three times the noise, wherever the line is.
func TestTrendUnderNoise(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 200).Draw(t, "samples")
		slope, base := rapid.Float64Range(-100, 100).Draw(t, "slope"), rapid.Float64Range(-1e6, 1e6).Draw(t, "base")
		noise := rapid.Float64Range(0, 50).Draw(t, "noise")
		times, values := make([]float64, n), make([]float64, n)
		for i := range n {
			times[i] = float64(i)
			values[i] = base + slope*times[i] + noise*rapid.Float64Range(-1, 1).Draw(t, "of the noise")
		}
		rise, mean := trend(times, values)
		if want := slope * float64(n-1); math.Abs(rise-want) > 3*noise+1e-3 {
			t.Fatalf("rise %g, want %g up to %g", rise, want, 3*noise)
		}
		if mean < slices.Min(values)-1e-6 || mean > slices.Max(values)+1e-6 {
			t.Fatalf("mean %g", mean)
		}
	})
}

// series makes samples of a run with two lives of the server, a second apart. Every
// gauge begins at its floor.
func series(grow func(gauge int, second float64) float64) (samples []sample) {
	for i := range 200 {
		s := sample{at: time.Duration(i) * time.Second, life: i / 100}
		for g := range gauges {
			s.values = append(s.values, gauges[g].floor+grow(g, float64(i)))
		}
		samples = append(samples, s)
	}
	return samples
}

// judge finds growth of every gauge, and of no other.
func TestJudge(t *testing.T) {
	for i, g := range gauges {
		for _, c := range []struct {
			what string
			grow func(second float64) float64
			want int // errors
		}{
			{"steady", func(float64) float64 { return 0 }, 0},
			{"rising all the time", func(s float64) float64 { return g.floor * s / 50 }, map[bool]int{true: 2, false: 1}[g.ofServer]},
			{"falling", func(s float64) float64 { return -g.floor * s / 200 }, 0},
			{"warming up", func(s float64) float64 { return 5 * g.floor * min(s, 20) }, 0},
			{"up and down", func(s float64) float64 { return g.floor / 3 * math.Sin(s) }, 0},
		} {
			var out bytes.Buffer
			errs := judge(&out, series(func(of int, second float64) float64 {
				if of != i {
					return 0
				}
				return c.grow(second)
			}))
			if len(errs) != c.want {
				t.Errorf("%s, %s: %v", g.name, c.what, errs)
			}
			for _, err := range errs {
				if !strings.HasPrefix(err.Error(), g.what) {
					t.Errorf("%s: %v", g.name, err)
				}
			}
			if !strings.Contains(out.String(), "| "+g.what) {
				t.Errorf("it printed %s", out.String())
			}
		}
	}
}

// What restarts with the server is judged for each of its lives: a leak that a kill
// hides, and a fresh start that is no leak.
func TestJudgeLives(t *testing.T) {
	saw := func(second float64) float64 { return 3 * gauges[0].floor * math.Mod(second, 100) / 100 }
	if errs := judge(new(bytes.Buffer), series(func(g int, s float64) float64 { return map[int]float64{0: saw(s)}[g] })); len(errs) != 2 {
		t.Errorf("a leak in each life: %v", errs)
	}
	if errs := judge(new(bytes.Buffer), series(func(g int, s float64) float64 {
		return map[int]float64{0: float64(int(s) / 100 * 64 << 20)}[g]
	})); len(errs) != 0 {
		t.Errorf("two levels: %v", errs)
	}
}

func TestTable(t *testing.T) {
	got := strings.Split(table(series(func(int, float64) float64 { return 0 })[99:101]), "\n")
	if len(got) != 4 || !strings.HasPrefix(got[0], "seconds,life,server_rss,") || !strings.HasPrefix(got[1], "99.0,0,16777216,") ||
		!strings.HasPrefix(got[2], "100.0,1,") || got[3] != "" {
		t.Errorf("got %q", got)
	}
}
