package kubernetes

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// The container that waits for the agent takes the writing process along when it
// ends. It appears to run until the kubelet has reported its end.
func TestWriterThatIsTakenAlong(t *testing.T) {
	killed := fmt.Errorf("write the agent: %w", errWriterKilled)
	again := func() error {
		t.Error("it is written again")
		return nil
	}
	t.Run("a kubelet that says late that the container ended", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var w agentWriter
			if err := w.write(func() error { return killed }); err != nil {
				t.Error(err)
			}
			time.Sleep(15 * time.Second)
			if err := w.write(again); err != nil {
				t.Errorf("after 15 s: %v", err)
			}
		})
	})
	t.Run("a container that goes on waiting", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var w agentWriter
			if err := w.write(func() error { return killed }); err != nil {
				t.Error(err)
			}
			time.Sleep(25 * time.Second)
			if err := w.write(again); !errors.Is(err, errWriterKilled) {
				t.Errorf("after 25 s: %v", err)
			}
		})
	})
	t.Run("any other failure is told at once", func(t *testing.T) {
		var w agentWriter
		why := errors.New("no space left on device")
		if err := w.write(func() error { return why }); !errors.Is(err, why) {
			t.Error(err)
		}
	})
}
