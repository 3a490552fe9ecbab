package server

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/call"
	"github.com/sandgate/sandgate/server/names"
	"github.com/sandgate/sandgate/server/policy"
)

func TestCreateIsGetOrCreate(t *testing.T) {
	h := newHarness(t, nil)
	req := func(env string) *sandboxv1.CreateSandboxRequest {
		return &sandboxv1.CreateSandboxRequest{SandboxId: "a", Spec: &sandboxv1.SandboxSpec{Env: map[string]string{"A": env}}}
	}
	var created, same int
	var mu sync.Mutex
	var work sync.WaitGroup
	for range 10 {
		work.Go(func() {
			resp, err := h.client.CreateSandbox(t.Context(), req("1"))
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err != nil:
				t.Error(err)
			case resp.GetCreated():
				created++
			default:
				same++
			}
		})
	}
	work.Wait()
	if created != 1 || same != 9 {
		t.Fatalf("%d created, %d joined", created, same)
	}
	_, err := h.client.CreateSandbox(t.Context(), req("2"))
	wantReason(t, err, "SANDBOX_SPEC_DIFFERS")
	if metadataOf(t, err)["sandbox_id"] != "a" {
		t.Fatalf("metadata %v", metadataOf(t, err))
	}
	// Labels and lifetimes are no part of the spec.
	r := req("1")
	r.Labels, r.Ttl = map[string]string{"x": "y"}, durationpb.New(time.Hour)
	if resp, err := h.client.CreateSandbox(t.Context(), r); err != nil || resp.GetCreated() {
		t.Fatalf("%v %v", resp, err)
	}
}

func TestCreateAppliesTemplate(t *testing.T) {
	h := newHarness(t, func(c *Config) {
		c.Templates = []policy.Template{policy.DefaultTemplate(), {
			Name: "py", Image: "python:3", Env: map[string]string{"A": "1", "B": "2"}, Allow: []string{"env", "image", "resources"},
			Images: []string{"registry.example/*"}, Resources: providers.Resources{MemoryBytes: 1 << 20},
			MaxResources: providers.Resources{MemoryBytes: 1 << 30}, AllowOptions: []string{"ok"},
		}}
	})
	resp, err := h.client.CreateSandbox(t.Context(), &sandboxv1.CreateSandboxRequest{
		SandboxId: "a", Template: "py", Labels: map[string]string{"team/x": "1"},
		Spec: &sandboxv1.SandboxSpec{Env: map[string]string{"B": "secret"}, Resources: &sandboxv1.Resources{CpuMillis: 500}},
	})
	if err != nil {
		t.Fatal(err)
	}
	sb := resp.GetSandbox()
	spec := sb.GetSpec()
	if spec.GetImage() != "python:3" || spec.GetWorkingDirectory() != "/workspace" || spec.GetResources().GetMemoryBytes() != 1<<20 ||
		spec.GetResources().GetCpuMillis() != 500 || spec.GetNetwork().GetMode() != sandboxv1.NetworkMode_NETWORK_MODE_NONE {
		t.Errorf("spec %v", spec)
	}
	if v, ok := spec.GetEnv()["B"]; !ok || v != "" {
		t.Errorf("env values must be left out: %v", spec.GetEnv())
	}
	if got := h.sandbox("a").info.Spec.Env; got["A"] != "1" || got["B"] != "secret" {
		t.Errorf("env %v", got)
	}
	if sb.GetIdleTtl().AsDuration() != 24*time.Hour || sb.GetTtl() != nil || sb.GetExpireTime() == nil {
		t.Errorf("lifetimes %v", sb)
	}
	options, _ := structpb.NewStruct(map[string]any{"privileged": true})
	for name, c := range map[string]struct {
		req    *sandboxv1.CreateSandboxRequest
		reason string
	}{
		"template":  {&sandboxv1.CreateSandboxRequest{Template: "none"}, "TEMPLATE_NOT_FOUND"},
		"field":     {&sandboxv1.CreateSandboxRequest{Template: "py", Spec: &sandboxv1.SandboxSpec{WorkingDirectory: "/x"}}, "TEMPLATE_FORBIDS"},
		"image":     {&sandboxv1.CreateSandboxRequest{Template: "py", Spec: &sandboxv1.SandboxSpec{Image: "evil:1"}}, "TEMPLATE_FORBIDS"},
		"memory":    {&sandboxv1.CreateSandboxRequest{Template: "py", Spec: &sandboxv1.SandboxSpec{Resources: &sandboxv1.Resources{MemoryBytes: 1 << 40}}}, "TEMPLATE_FORBIDS"},
		"network":   {&sandboxv1.CreateSandboxRequest{Spec: &sandboxv1.SandboxSpec{Network: &sandboxv1.Network{Mode: sandboxv1.NetworkMode_NETWORK_MODE_FULL}}}, "TEMPLATE_FORBIDS"},
		"proxy":     {&sandboxv1.CreateSandboxRequest{Spec: &sandboxv1.SandboxSpec{Network: &sandboxv1.Network{Mode: sandboxv1.NetworkMode_NETWORK_MODE_PROXY}}}, "TEMPLATE_FORBIDS"},
		"options":   {&sandboxv1.CreateSandboxRequest{Template: "py", ProviderOptions: options}, "TEMPLATE_FORBIDS"},
		"id":        {&sandboxv1.CreateSandboxRequest{SandboxId: "-x"}, "REQUEST_INVALID"},
		"label":     {&sandboxv1.CreateSandboxRequest{Labels: map[string]string{"a b": ""}}, "REQUEST_INVALID"},
		"ttl":       {&sandboxv1.CreateSandboxRequest{Ttl: durationpb.New(-1)}, "REQUEST_INVALID"},
		"directory": {&sandboxv1.CreateSandboxRequest{Spec: &sandboxv1.SandboxSpec{WorkingDirectory: "x"}}, "PATH_INVALID"},
		"access":    {&sandboxv1.CreateSandboxRequest{Spec: &sandboxv1.SandboxSpec{Access: &sandboxv1.AccessPolicy{Virtual: true}}}, "REQUEST_INVALID"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := h.client.CreateSandbox(t.Context(), c.req)
			wantReason(t, err, c.reason)
			entry := map[string]string{"field": `allow has no "working_directory"`, "options": `allow_options has no "privileged"`}[name]
			if !strings.Contains(status.Convert(err).Message(), entry) {
				t.Errorf("%v does not name the template's entry: %s", err, entry)
			}
		})
	}
}

// A sandbox whose write prefixes do not bind its commands reports that.
func TestWritePrefixesThatDoNotBindCommands(t *testing.T) {
	for name, tt := range map[string]struct {
		access   *sandboxv1.AccessPolicy
		enforced []providers.Enforcement
		want     string
	}{
		"no prefixes":          {&sandboxv1.AccessPolicy{ReadDenyPrefixes: []string{"/x"}}, nil, ""},
		"allowed, held":        {&sandboxv1.AccessPolicy{WriteAllowPrefixes: []string{"/x"}}, []providers.Enforcement{{Name: "write_prefixes", Enforced: true}}, ""},
		"allowed, not held":    {&sandboxv1.AccessPolicy{WriteAllowPrefixes: []string{"/x"}}, []providers.Enforcement{{Name: "write_prefixes", Detail: "old kernel"}}, "write_prefixes: old kernel"},
		"denied, not reported": {&sandboxv1.AccessPolicy{WriteDenyPrefixes: []string{"/x"}}, nil, "write_prefixes: the provider does not report it"},
	} {
		t.Run(name, func(t *testing.T) {
			access, err := policy.EncodeAccess(nil, tt.access)
			if err != nil {
				t.Fatal(err)
			}
			s := &Server{described: providers.Description{Enforcement: tt.enforced}}
			s.current.Store(&settings{})
			got := s.sandbox(providers.Info{Spec: providers.Spec{Access: access}}).GetIsolation().GetNotEnforced()
			if strings.Join(got, "; ") != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestListPages(t *testing.T) {
	h := newHarness(t, nil)
	for i := range 7 {
		_, err := h.client.CreateSandbox(t.Context(), &sandboxv1.CreateSandboxRequest{
			SandboxId: fmt.Sprintf("s%d", i), Labels: map[string]string{"odd": fmt.Sprint(i % 2)}})
		if err != nil {
			t.Fatal(err)
		}
	}
	var ids []string
	req := &sandboxv1.ListSandboxesRequest{PageSize: 2, Labels: map[string]string{"odd": "0"}}
	for {
		resp, err := h.client.ListSandboxes(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range resp.GetSandboxes() {
			ids = append(ids, s.GetSandboxId())
		}
		if req.PageToken = resp.GetNextPageToken(); req.GetPageToken() == "" {
			break
		}
		other := &sandboxv1.ListSandboxesRequest{PageToken: req.GetPageToken()}
		_, err = h.client.ListSandboxes(t.Context(), other)
		wantReason(t, err, "PAGE_TOKEN_INVALID")
	}
	if !slices.Equal(ids, []string{"s0", "s2", "s4", "s6"}) {
		t.Fatalf("got %v", ids)
	}
	_, err := h.client.ListSandboxes(t.Context(), &sandboxv1.ListSandboxesRequest{States: []sandboxv1.SandboxState{1, 99}})
	if err == nil || !strings.Contains(err.Error(), "states[1]") {
		t.Errorf("an unknown state: %v", err)
	}
	_, err = h.client.ListSandboxes(t.Context(), &sandboxv1.ListSandboxesRequest{PageToken: "?"})
	wantReason(t, err, "PAGE_TOKEN_INVALID")
	_, err = h.client.ListSandboxes(t.Context(), &sandboxv1.ListSandboxesRequest{PageSize: -1})
	wantReason(t, err, "REQUEST_INVALID")
}

func TestUpdateAndDelete(t *testing.T) {
	h := newHarness(t, nil)
	h.create("a")
	resp, err := h.client.UpdateSandbox(t.Context(), &sandboxv1.UpdateSandboxRequest{SandboxId: "a",
		SetLabels: map[string]string{"x": "1"}, Ttl: durationpb.New(time.Hour), IdleTtl: durationpb.New(0)})
	if err != nil {
		t.Fatal(err)
	}
	if s := resp.GetSandbox(); s.GetLabels()["x"] != "1" || s.GetTtl().AsDuration() != time.Hour || s.GetIdleTtl() != nil {
		t.Fatalf("got %v", s)
	}
	_, err = h.client.DeleteSandbox(t.Context(), &sandboxv1.DeleteSandboxRequest{SandboxId: "a", ExpectedIncarnation: "old"})
	wantReason(t, err, "SANDBOX_REPLACED")
	if metadataOf(t, err)["incarnation"] != "i1" {
		t.Fatalf("metadata %v", metadataOf(t, err))
	}
	for i, want := range []bool{true, false} {
		resp, err := h.client.DeleteSandbox(t.Context(), &sandboxv1.DeleteSandboxRequest{SandboxId: "a", AllowMissing: true})
		if err != nil || resp.GetDeleted() != want {
			t.Fatalf("delete %d: %v %v", i, resp, err)
		}
	}
	_, err = h.client.DeleteSandbox(t.Context(), &sandboxv1.DeleteSandboxRequest{SandboxId: "a"})
	wantReason(t, err, "SANDBOX_NOT_FOUND")
	for name, err := range map[string]error{
		"suspend": call1(h.client.SuspendSandbox(t.Context(), &sandboxv1.SuspendSandboxRequest{SandboxId: "a"})),
		"resume":  call1(h.client.ResumeSandbox(t.Context(), &sandboxv1.ResumeSandboxRequest{SandboxId: "a"})),
		"pool":    call1(h.client.GetPoolStatus(t.Context(), &sandboxv1.GetPoolStatusRequest{})),
	} {
		t.Run(name, func(t *testing.T) { wantReason(t, err, "FEATURE_UNSUPPORTED") })
	}
}

// A sandbox is deleted when its lifetime has ended, never before, and a
// running command keeps an idle one alive.
func TestReaperDeletesOnlyAfterALifetime(t *testing.T) {
	h, clock := leaping(t)
	lives := func(id string) bool {
		_, err := h.client.GetSandbox(t.Context(), &sandboxv1.GetSandboxRequest{SandboxId: id})
		if err != nil && status.Code(err) != codes.NotFound {
			t.Fatal(err)
		}
		return err == nil
	}
	age := func(id string, by time.Duration) {
		h.provider.mu.Lock()
		defer h.provider.mu.Unlock()
		p := h.provider.sandboxes[names.Substrate(call.DefaultTenant, id)]
		p.info.CreateTime = p.info.CreateTime.Add(-by)
		p.info.LastActivity = p.info.LastActivity.Add(-by)
	}
	reap := func() {
		if err := h.server.reaper.Round(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range []string{"idle", "busy", "recent", "aged", "young"} {
		req := &sandboxv1.CreateSandboxRequest{SandboxId: id, IdleTtl: durationpb.New(time.Hour)}
		if id == "aged" {
			req.Ttl, req.IdleTtl = durationpb.New(time.Hour), durationpb.New(0)
		}
		if _, err := h.client.CreateSandbox(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		if id != "young" {
			age(id, 61*time.Minute)
		}
	}
	h.sandbox("busy").agent.running.Store(1)
	h.sandbox("aged").agent.running.Store(1)
	recent := func() time.Duration { return 10 * time.Minute }
	h.sandbox("recent").agent.idle.Store(&recent)
	reap()
	for id, want := range map[string]bool{"idle": false, "busy": true, "recent": true, "aged": false, "young": true} {
		if lives(id) != want {
			t.Errorf("%s lives: %t", id, !want)
		}
	}
	_, err := h.client.StatFile(t.Context(), &sandboxv1.StatFileRequest{SandboxId: "idle", Path: "/x"})
	wantReason(t, err, "SANDBOX_EXPIRED")
	if metadataOf(t, err)["expire_time"] == "" {
		t.Fatalf("metadata %v", metadataOf(t, err))
	}
	// What the agent said has renewed the sandbox.
	sb, err := h.client.GetSandbox(t.Context(), &sandboxv1.GetSandboxRequest{SandboxId: "busy"})
	if err != nil || time.Until(sb.GetSandbox().GetExpireTime().AsTime()) < 59*time.Minute {
		t.Fatalf("%v %v", sb, err)
	}
	// An agent that does not answer keeps its sandbox for a while.
	away := error(fmt.Errorf("away: %w", providers.ErrUnavailable))
	age("busy", 61*time.Minute)
	h.sandbox("busy").cut()
	h.sandbox("busy").dialErr.Store(&away)
	reap()
	if !lives("busy") {
		t.Error("a sandbox was deleted although it may be in use")
	}
	age("busy", time.Hour)
	clock.Pass(lateWait)
	reap()
	if lives("busy") {
		t.Error("a sandbox whose agent is gone for long was kept")
	}
	h.create("idle")
	if !lives("idle") {
		t.Error("an expired id cannot be used again")
	}
}

func TestAgedSandboxRefusesCalls(t *testing.T) {
	h := newHarness(t, nil)
	_, err := h.client.CreateSandbox(t.Context(), &sandboxv1.CreateSandboxRequest{SandboxId: "a", Ttl: durationpb.New(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	h.provider.mu.Lock()
	p := h.provider.sandboxes[names.Substrate(call.DefaultTenant, "a")]
	p.info.CreateTime = p.info.CreateTime.Add(-2 * time.Hour)
	h.provider.mu.Unlock()
	p.cut()
	_, err = h.execute(t.Context(), &sandboxv1.ExecuteRequest{SandboxId: "a"})
	wantReason(t, err, "SANDBOX_EXPIRED")
}

// Activity is written, but not for every call.
func TestActivityIsWrittenSparingly(t *testing.T) {
	h := newHarness(t, nil)
	_, err := h.client.CreateSandbox(t.Context(), &sandboxv1.CreateSandboxRequest{SandboxId: "a", IdleTtl: durationpb.New(4 * time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	last := func() time.Time {
		h.server.activity.Wait()
		h.provider.mu.Lock()
		defer h.provider.mu.Unlock()
		return h.provider.sandboxes[names.Substrate(call.DefaultTenant, "a")].info.LastActivity
	}
	first := last()
	touch := func() {
		_, err := h.client.StatFile(t.Context(), &sandboxv1.StatFileRequest{SandboxId: "a", Path: "/x"})
		if err != nil {
			t.Fatal(err)
		}
	}
	touch()
	if !last().Equal(first) {
		t.Fatal("activity was written at once")
	}
	h.server.agents.Peek(names.Substrate(call.DefaultTenant, "a")).Activity.Written.Store(time.Now().Add(-2 * time.Minute).UnixNano())
	touch()
	if !last().After(first) {
		t.Fatal("activity was not written")
	}
}

func TestCleanup(t *testing.T) {
	h := newHarness(t, nil)
	for _, id := range []string{"a", "b"} {
		h.create(id)
	}
	h.sandbox("b").agent.running.Store(1)
	req := &sandboxv1.CleanupSandboxesRequest{MaxIdle: durationpb.New(time.Nanosecond), DryRun: true}
	for _, dry := range []bool{true, false} {
		req.DryRun = dry
		resp, err := h.client.CleanupSandboxes(t.Context(), req)
		if err != nil || !slices.Equal(resp.GetDeletedSandboxIds(), []string{"a"}) || resp.GetKept() != 1 {
			t.Fatalf("dry %t: %v %v", dry, resp, err)
		}
	}
	resp, err := h.client.CleanupSandboxes(t.Context(), &sandboxv1.CleanupSandboxesRequest{})
	if err != nil || len(resp.GetDeletedSandboxIds()) != 0 || resp.GetKept() != 1 {
		t.Fatalf("%v %v", resp, err)
	}
}

func TestServerInfo(t *testing.T) {
	h := newHarness(t, func(c *Config) { c.Version = "1.2.3" })
	resp, err := h.client.GetServerInfo(t.Context(), &sandboxv1.GetServerInfoRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if resp.GetVersion() != "1.2.3" || resp.GetProvider() != "memory" || resp.GetPrincipal().GetTenant() != "default" ||
		resp.GetLimits().GetMaxMessageBytes() != 16<<20 || !slices.Equal(resp.GetTemplates(), []string{"default"}) {
		t.Fatalf("got %v", resp)
	}
}

func TestRequireLimits(t *testing.T) {
	_, err := New(Config{Provider: newScriptedProvider(t), RequireLimits: true})
	if err == nil {
		t.Fatal("limits are not enforced and that was not reported")
	}
}

func TestIdleTunnelsAreClosed(t *testing.T) {
	h := newHarness(t, func(c *Config) { c.Timing.AgentIdle = 20 * time.Millisecond })
	h.create("a")
	deadline := time.Now().Add(30 * time.Second)
	for len(h.server.agents.Live()) > 0 {
		if time.Now().After(deadline) {
			t.Fatal("an unused connection was kept")
		}
		time.Sleep(5 * time.Millisecond)
	}
	if _, err := h.execute(context.WithoutCancel(t.Context()), &sandboxv1.ExecuteRequest{SandboxId: "a"}); err != nil {
		t.Fatal(err)
	}
}
