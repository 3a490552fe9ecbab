package kubernetes

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	"github.com/sandgate/sandgate/providers"
	shared "github.com/sandgate/sandgate/providers/internal/record"
)

// versioned makes a fake cluster refuse writes to what has changed since, as a
// real one does, and lets a test lose the answers of writes.
type versioned struct {
	mu      sync.Mutex
	version int
	lose    int // how many answers are to be lost
}

var errLost = errors.New("connection reset by peer")

func (v *versioned) install(client *fake.Clientset) {
	client.PrependReactor("update", "configmaps", func(action k8stesting.Action) (bool, runtime.Object, error) {
		v.mu.Lock()
		defer v.mu.Unlock()
		cm := action.(k8stesting.UpdateAction).GetObject().(*corev1.ConfigMap).DeepCopy()
		now, err := client.Tracker().Get(action.GetResource(), cm.Namespace, cm.Name)
		if err != nil {
			return true, nil, err
		}
		if now.(*corev1.ConfigMap).ResourceVersion != cm.ResourceVersion {
			return true, nil, apierrors.NewConflict(schema.GroupResource{Resource: "configmaps"}, cm.Name, errors.New("it has changed"))
		}
		v.version++
		cm.ResourceVersion = strconv.Itoa(v.version)
		if err := client.Tracker().Update(action.GetResource(), cm, cm.Namespace); err != nil {
			return true, nil, err
		}
		if v.lose > 0 {
			v.lose--
			return true, nil, errLost
		}
		return true, cm, nil
	})
}

func (v *versioned) loseNext(n int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.lose = n
}

// heldRecord is a record that a hold creates.
func heldRecord(t *testing.T) (*Provider, *versioned, *ownership) {
	t.Helper()
	p, client := fakeProvider(t)
	v := &versioned{}
	v.install(client)
	put(t, client, "sg-x", record{Sandbox: shared.Sandbox{LastActivity: time.Now()}, Phase: phaseCreating, Owner: "me", Namespace: "ns"})
	cm, rec, err := p.read(t.Context(), "sg-x")
	if err != nil {
		t.Fatal(err)
	}
	_, h := p.own(t.Context(), cm, rec, rec.Owner)
	t.Cleanup(h.release)
	return p, v, h
}

// A write that was done and not answered is no takeover: the hold goes on.
func TestLostAnswerIsNoTakeover(t *testing.T) {
	for name, lost := range map[string]int{"one answer": 1, "more than are tried again": changeTries + 1} {
		t.Run(name, func(t *testing.T) {
			p, v, h := heldRecord(t)
			v.loseNext(lost)
			for heartbeat := 0; heartbeat < lost; heartbeat++ {
				if err := h.change(t.Context(), func(r *record) { r.Heartbeat++ }); errors.Is(err, errTakenOver) {
					t.Fatalf("heartbeat %d: %v", heartbeat, err)
				}
			}
			if err := h.change(t.Context(), func(r *record) { r.Phase, r.Pod = phaseActive, "pod" }); err != nil {
				t.Fatal(err)
			}
			_, rec, err := p.read(t.Context(), "sg-x")
			if err != nil || rec.Phase != phaseActive || rec.Pod != "pod" || rec.Heartbeat == 0 {
				t.Errorf("record %+v, %v", rec, err)
			}
		})
	}
}

// A write by another owner is a takeover, also when an answer was lost
// before.
func TestWriteByAnotherOwnerIsATakeover(t *testing.T) {
	for name, lost := range map[string]int{"all answers came": 0, "an answer was lost": 1} {
		t.Run(name, func(t *testing.T) {
			p, v, h := heldRecord(t)
			v.loseNext(lost)
			_ = h.change(t.Context(), func(r *record) { r.Heartbeat++ })
			cm, rec, err := p.read(t.Context(), "sg-x")
			if err != nil {
				t.Fatal(err)
			}
			other, err := p.mark(t.Context(), cm, rec)
			if err != nil {
				t.Fatal(err)
			}
			defer other.release()
			if err := h.change(t.Context(), func(r *record) { r.Phase = phaseActive }); !errors.Is(err, errTakenOver) {
				t.Errorf("the first owner: %v", err)
			}
			_, rec, err = p.read(t.Context(), "sg-x")
			if err != nil || rec.Phase != phaseDeleting || rec.Owner != other.owner {
				t.Errorf("record %+v, %v", rec, err)
			}
		})
	}
}

// Of two deletions that read the same record only one goes on, and of a deletion
// and activity only one as well.
func TestOnlyOneDeletionOfARecordGoesOn(t *testing.T) {
	p, client := fakeProvider(t)
	(&versioned{}).install(client)
	used := time.Now()
	put(t, client, "sg-x", record{Sandbox: shared.Sandbox{LastActivity: used}, Phase: phaseActive, Owner: "maker", Namespace: "ns"})
	cm, rec, err := p.read(t.Context(), "sg-x")
	if err != nil {
		t.Fatal(err)
	}
	later := used.Add(time.Second)
	rec2 := *rec
	rec2.LastActivity = later
	cm2 := cm.DeepCopy()
	if err := rec2.put(cm2); err != nil {
		t.Fatal(err)
	}
	if _, err := p.records().Update(t.Context(), cm2, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.mark(t.Context(), cm, rec); !errors.Is(err, errTakenOver) {
		t.Errorf("a deletion that does not know of the last use: %v", err)
	}
	err = p.Delete(t.Context(), "sg-x", providers.Condition{IdleSince: used})
	if !errors.Is(err, providers.ErrInUse) {
		t.Errorf("delete if idle since before the last use: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	cm, rec, err = p.read(ctx, "sg-x")
	if err != nil {
		t.Fatal(err)
	}
	first, err := p.mark(ctx, cm, rec)
	if err != nil {
		t.Fatal(err)
	}
	defer first.release()
	if _, err := p.mark(ctx, cm, rec); !errors.Is(err, errTakenOver) {
		t.Errorf("the second deletion: %v", err)
	}
}
