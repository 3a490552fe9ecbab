//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
)

// minSamples is how many samples each life of a server must have at least.
const minSamples = 12

// gauge is something that server or sandboxes hold and that must not grow under a steady
// load. The rise of a line through its samples may be up to share of their mean, or
// floor if that is more: what a load that is not quite steady explains.
type gauge struct {
	name     string // column of the samples
	what     string
	ofServer bool // begins anew with each process of the server
	share    float64
	floor    float64
}

// gauges are in the order of sample.values.
var gauges = []gauge{
	{"server_rss", "resident memory of the server", true, 0.1, 16 << 20},
	{"server_descriptors", "descriptors of the server", true, 0.1, 16},
	{"server_goroutines", "goroutines of the server", true, 0.1, 64},
	{"agents_rss", "resident memory of all agents", false, 0.1, 32 << 20},
	{"processes", "processes in sandboxes", false, 0.1, 16},
	{"cgroups", "cgroups of sandboxes and commands", false, 0.1, 48},
	{"mounts", "mounts of sandboxes", false, 0.1, 64},
	{"loops", "loop devices of sandboxes", false, 0.1, 4},
	{"files", "files in the state directory", false, 0.1, 64},
}

// sample has the gauges at one moment.
type sample struct {
	at     time.Duration // since the load began
	life   int           // how often the server was killed before
	values []float64
}

// sample measures. It returns an error if the server does not answer.
func (h *host) sample(ctx context.Context, begin time.Time) (sample, error) {
	s := sample{at: time.Since(begin), life: h.killed()}
	resident, err := h.resident()
	if err != nil {
		return s, err
	}
	metrics, err := h.scrape(ctx, "process_open_fds", "go_goroutines")
	if err != nil {
		return s, err
	}
	processes, agents := h.uses.Processes(), int64(0)
	for _, p := range processes {
		if p.Agent {
			agents += p.Resident()
		}
	}
	s.values = []float64{
		float64(resident), metrics["process_open_fds"], metrics["go_goroutines"], float64(agents), float64(len(processes)),
		float64(len(h.uses.Cgroups())), float64(h.uses.Mounts()), float64(len(h.uses.Loops())), float64(h.uses.Files()),
	}
	return s, nil
}

// soakFor keeps the load for its time, with samples and kills, and returns an error if a
// gauge has grown.
func (l *load) soakFor(ctx context.Context, w io.Writer) error {
	stop, begin := make(chan struct{}), time.Now()
	var working sync.WaitGroup
	working.Go(func() { l.mixed(ctx, stop) })
	samples, err := l.watchOver(ctx, w, begin)
	close(stop)
	working.Wait()
	if l.samples != "" {
		err = errors.Join(err, os.WriteFile(l.samples, []byte(table(samples)), 0o644))
	}
	if err != nil {
		return err
	}
	return errors.Join(judge(w, samples)...)
}

// watchOver takes samples, and kills the server so that its lives are equally long.
func (l *load) watchOver(ctx context.Context, w io.Writer, begin time.Time) (samples []sample, err error) {
	ticks := time.NewTicker(l.every)
	defer ticks.Stop()
	reported := begin
	for time.Since(begin) < l.duration {
		select {
		case <-ctx.Done():
			return samples, context.Cause(ctx)
		case <-ticks.C:
		}
		if life := int(int64(l.kills+1) * int64(time.Since(begin)) / int64(l.duration)); life > l.host.killed() && life <= l.kills {
			if err := l.host.restart(ctx); err != nil {
				return samples, fmt.Errorf("start the server again: %w", err)
			}
		}
		s, err := l.host.sample(ctx, begin)
		if err != nil {
			return samples, fmt.Errorf("sample: %w", err)
		}
		samples = append(samples, s)
		if time.Since(reported) > max(15*time.Second, l.duration/20) {
			reported = time.Now()
			fmt.Fprintf(w, "soak: %v: %d calls, server %.0f MiB, agents %.0f MiB, %.0f processes\n",
				s.at.Round(time.Second), l.tally.calls.Load(), s.values[0]/(1<<20), s.values[3]/(1<<20), s.values[4])
		}
	}
	return samples, nil
}

// table returns the samples as CSV.
func table(samples []sample) string {
	var b strings.Builder
	b.WriteString("seconds,life")
	for _, g := range gauges {
		b.WriteString("," + g.name)
	}
	for _, s := range samples {
		fmt.Fprintf(&b, "\n%.1f,%d", s.at.Seconds(), s.life)
		for _, v := range s.values {
			fmt.Fprintf(&b, ",%.0f", v)
		}
	}
	return b.String() + "\n"
}

// judge prints the rise of each gauge, and returns an error for each that rose by more
// than it may. Gauges of the server are judged for each of its lives.
func judge(w io.Writer, samples []sample) (errs []error) {
	fmt.Fprintf(w, "\n| soak | mean | rise | allowed |\n|---|---:|---:|---:|\n")
	for i, g := range gauges {
		for _, steady := range g.steady(samples) {
			var times, values []float64
			for _, s := range steady {
				times, values = append(times, s.at.Seconds()), append(values, s.values[i])
			}
			rise, mean := trend(times, values)
			allowed := max(g.floor, g.share*mean)
			what := g.what
			if g.ofServer {
				what = fmt.Sprintf("%s, process %d", g.what, steady[0].life+1)
			}
			fmt.Fprintf(w, "| %s | %s | %s | %s |\n", what, g.show(mean), g.show(rise), g.show(allowed))
			if rise > allowed {
				errs = append(errs, fmt.Errorf("%s: grew by %s in %.0f s, at most %s is allowed", what, g.show(rise),
					times[len(times)-1]-times[0], g.show(allowed)))
			}
		}
	}
	return errs
}

func (g gauge) show(v float64) string {
	if g.floor >= 1<<20 {
		return fmt.Sprintf("%.1f MiB", v/(1<<20))
	}
	return fmt.Sprintf("%.1f", v)
}

// steady returns the samples after the first quarter of the time: of the whole run, or
// of each life of the server.
func (g gauge) steady(samples []sample) (runs [][]sample) {
	for len(samples) > 0 {
		n := len(samples)
		if g.ofServer {
			for n = 1; n < len(samples) && samples[n].life == samples[0].life; n++ {
			}
		}
		run := samples[:n]
		samples = samples[n:]
		warm := run[0].at + (run[n-1].at-run[0].at)/4
		for len(run) > 1 && run[0].at < warm {
			run = run[1:]
		}
		runs = append(runs, run)
	}
	return runs
}
