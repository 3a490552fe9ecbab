//go:build linux

package main

// trend fits a straight line to values at times by least squares. It returns by how much
// the line rises from the first time to the last, and the mean of the values.
func trend(times, values []float64) (rise, mean float64) {
	if len(times) == 0 {
		return 0, 0
	}
	var t, v float64
	for i := range times {
		t += times[i] / float64(len(times))
		v += values[i] / float64(len(times))
	}
	var tv, tt float64
	for i := range times {
		tv += (times[i] - t) * (values[i] - v)
		tt += (times[i] - t) * (times[i] - t)
	}
	if tt == 0 {
		return 0, v
	}
	return tv / tt * (times[len(times)-1] - times[0]), v
}
