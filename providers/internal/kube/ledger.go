package kube

import (
	"context"
	"math/rand/v2"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
)

// ledgerKey is the key of the document in its ConfigMap.
const ledgerKey = "document"

// The pauses between attempts to change a document that others change too.
const (
	ledgerPause    = 5 * time.Millisecond
	ledgerPauseMax = 200 * time.Millisecond
)

// changeLedger is providers.Ledger's method, for a document in a ConfigMap named
// "sandgate-ledger-NAME". The object's resource version excludes lost changes.
func changeLedger(ctx context.Context, maps corev1client.ConfigMapInterface, name string, change func([]byte) ([]byte, error)) error {
	name = "sandgate-ledger-" + name
	for pause := ledgerPause; ; pause = min(2*pause, ledgerPauseMax) {
		cm, err := maps.Get(ctx, name, metav1.GetOptions{})
		missing := apierrors.IsNotFound(err)
		if err != nil && !missing {
			return Wrap(ctx, "read the ledger", err)
		}
		var old []byte
		if !missing && cm.BinaryData[ledgerKey] != nil {
			old = cm.BinaryData[ledgerKey]
		}
		now, err := change(old)
		if err != nil || now == nil {
			return err
		}
		if missing {
			cm = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, BinaryData: map[string][]byte{ledgerKey: now}}
			_, err = maps.Create(ctx, cm, metav1.CreateOptions{})
		} else {
			cm.BinaryData = map[string][]byte{ledgerKey: now}
			_, err = maps.Update(ctx, cm, metav1.UpdateOptions{})
		}
		// A document that was deleted meanwhile is not found.
		if err == nil || !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) && !apierrors.IsNotFound(err) {
			return Wrap(ctx, "write the ledger", err)
		}
		select {
		case <-ctx.Done():
			return Wrap(ctx, "write the ledger", err)
		case <-time.After(pause/2 + rand.N(pause)):
		}
	}
}
