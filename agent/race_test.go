//go:build race

package agent

// raceEnabled: the race detector takes memory of its own, so sizes say nothing.
const raceEnabled = true
