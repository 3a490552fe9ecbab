//go:build !linux

package serve

const coarseSlack = 0

func setTimerSlack(int) {}
