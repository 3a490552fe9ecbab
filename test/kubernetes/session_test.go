package kubernetes

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	kerrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// sessionsOutliveTheirPods kills the pods under sessions of the Python client: a
// session reports the loss once, and then has a new sandbox if it may make one.
func (c installed) sessionsOutliveTheirPods(t *testing.T, client kubernetes.Interface) {
	if _, err := os.Stat(python); err != nil {
		t.Skipf("needs the client's environment, which make setup makes: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, python, "testdata/session.py")
	cmd.Env, cmd.Stderr = c.environment, t.Output()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	last := ""
	for lines := bufio.NewScanner(out); lines.Scan(); {
		last = lines.Text()
		name, isID := strings.CutPrefix(last, "sb-")
		if !isID {
			continue
		}
		pods, err := client.CoreV1().Pods(c.sandboxes).List(ctx, meta.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		killed := 0
		for _, pod := range pods.Items {
			if !strings.Contains(pod.Name, name) {
				continue
			}
			// With a grace period, the pod is there until its containers have ended.
			grace := int64(1)
			if err := client.CoreV1().Pods(c.sandboxes).Delete(ctx, pod.Name, meta.DeleteOptions{GracePeriodSeconds: &grace}); err != nil {
				t.Error(err)
			}
			// Its controller may make another pod of that name at once.
			for now := pod.DeepCopy(); now.UID == pod.UID && !kerrors.IsNotFound(err) && ctx.Err() == nil; {
				time.Sleep(50 * time.Millisecond)
				now, err = client.CoreV1().Pods(c.sandboxes).Get(ctx, pod.Name, meta.GetOptions{})
			}
			killed++
		}
		if killed != 1 {
			t.Errorf("%s has %d pods", last, killed)
		}
		if _, err := in.Write([]byte("\n")); err != nil {
			t.Error(err)
		}
	}
	if err := cmd.Wait(); err != nil || last != "told and made anew" {
		t.Errorf("%q, %v", last, err)
	}
}
