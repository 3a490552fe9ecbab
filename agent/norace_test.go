//go:build !race

package agent

// raceEnabled: sizes of memory can be judged.
const raceEnabled = false
