package webhook

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/events"
)

// message is the body of a webhook.
type message struct {
	// Type is "sandbox." and the event's type.
	Type string `json:"type"`
	// Timestamp is when it happened.
	Timestamp time.Time `json:"timestamp"`
	Data      data      `json:"data"`
}

// data has the fields of SandboxEvent, and the tenant.
type data struct {
	EventID     string            `json:"event_id"`
	Tenant      string            `json:"tenant,omitempty"`
	SandboxID   string            `json:"sandbox_id,omitempty"`
	Incarnation string            `json:"incarnation,omitempty"`
	Template    string            `json:"template,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	State       string            `json:"state,omitempty"`
	Reason      events.Reason     `json:"reason,omitempty"`
	Principal   string            `json:"principal,omitempty"`
	Message     string            `json:"message,omitempty"`
	ExpireTime  time.Time         `json:"expire_time,omitzero"`
}

func encode(e events.Event) ([]byte, error) {
	m := message{Type: "sandbox." + string(e.Type), Timestamp: e.Time, Data: data{
		EventID: e.ID, Tenant: e.Tenant, SandboxID: e.SandboxID, Incarnation: e.Incarnation, Template: e.Template,
		Labels: e.Labels, Reason: e.Reason, Principal: e.Principal, Message: e.Message, ExpireTime: e.ExpireTime,
	}}
	if e.State != providers.StateUnknown {
		m.Data.State = e.State.String()
	}
	return json.Marshal(m)
}

const (
	// attemptTimeout bounds an attempt.
	attemptTimeout = 15 * time.Second
	// maxAnswer is what is read of an answer, so that the connection can be used again.
	maxAnswer       = 4 << 10
	maxAnswerHeader = 16 << 10
)

func newClient() *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			Proxy: http.ProxyFromEnvironment, MaxIdleConnsPerHost: 1, IdleConnTimeout: time.Minute,
			MaxResponseHeaderBytes: maxAnswerHeader, DisableCompression: true, ForceAttemptHTTP2: true,
		},
		// The operator has named one URL, and no other gets events.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// attempt sends an event once. The receiver's answer must be 2xx.
func attempt(ctx context.Context, client *http.Client, to Endpoint, e events.Event) error {
	secrets, err := to.secrets()
	if err != nil {
		return err
	}
	body, err := encode(e)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, to.URL, bytes.NewReader(body))
	if err != nil {
		return err
	}
	now := time.Now()
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "sandgate")
	req.Header.Set("Webhook-Id", e.ID)
	req.Header.Set("Webhook-Timestamp", strconv.FormatInt(now.Unix(), 10))
	req.Header.Set("Webhook-Signature", sign(secrets, e.ID, now, body))
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("the receiver answered %d", resp.StatusCode)
	}
	// Its status is its answer, whatever becomes of the rest.
	_, _ = io.CopyN(io.Discard, resp.Body, maxAnswer)
	return nil
}
