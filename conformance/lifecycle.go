package conformance

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	sandgate "github.com/sandgate/sandgate/clients/go"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// lifecycleCases are about sandboxes as such.
var lifecycleCases = []Case{
	{Name: "C02_another_incarnation_is_refused", run: anotherIncarnation},
	{Name: "C20_create_race", run: createRace},
	{Name: "C20_create_with_another_spec", run: createWithAnotherSpec},
	{Name: "C21_delete_ends_its_commands", run: deleteEndsCommands},
	{Name: "C22_list_pages_by_label", run: listPages},
	{Name: "C27_errors_have_reasons", run: errorsHaveReasons},
}

// request asks for a sandbox of this run.
func (s *Suite) request(id string) sandgate.CreateRequest {
	return sandgate.CreateRequest{ID: id, Template: s.opts.Template, Labels: map[string]string{label: s.run}, TTL: lifetime}
}

func (s *Suite) newID(name string) string { return "conformance-" + s.run + "-" + name }

func anotherIncarnation(ctx context.Context, t T, s *Suite) {
	sandbox := s.sandbox(ctx, t, nil)
	path := s.workdir(ctx, t, sandbox) + "/replaced"
	other := s.client.Sandbox(sandbox.ID())
	other.Incarnation = "never-was"
	_, execute := other.Execute(ctx, sandgate.ExecuteRequest{Shell: "echo run >>" + path})
	_, stat := other.Stat(ctx, "/tmp")
	_, write := other.Write(ctx, path, nil, sandgate.WriteRequest{})
	for call, err := range map[string]error{"execute": execute, "stat": stat, "write": write, "delete": other.Delete(ctx)} {
		wantReason(t, call, err, "SANDBOX_REPLACED")
	}
	if _, err := s.shared.Stat(ctx, path); !errors.Is(err, sandgate.ErrFileNotFound) {
		t.Errorf("a call reached the wrong incarnation: %v", err)
	}
}

func createRace(ctx context.Context, t T, s *Suite) {
	const callers = 8
	id := s.newID("race")
	made := make([]*sandgate.Sandbox, callers)
	errs := make([]error, callers)
	var first atomic.Int32
	s.note(id, true)
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			var created bool
			made[i], created, errs[i] = s.client.Create(ctx, s.request(id))
			if created {
				first.Add(1)
			}
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatalf("create: %v", err)
	}
	t.Cleanup(func() { s.delete(t, made[0]) })
	for i, m := range made {
		if m.Incarnation == "" || m.Incarnation != made[0].Incarnation {
			t.Errorf("caller %d got incarnation %q, caller 0 %q", i, m.Incarnation, made[0].Incarnation)
		}
	}
	if n := first.Load(); n != 1 {
		t.Errorf("%d callers were told that they made it", n)
	}
}

func createWithAnotherSpec(ctx context.Context, t T, s *Suite) {
	r := s.request(s.newID("spec"))
	r.Spec = &sandgate.Spec{WorkingDirectory: "/tmp"}
	made := s.create(ctx, t, r)
	t.Cleanup(func() { s.delete(t, made) })
	again, created, err := s.client.Create(ctx, r)
	if err != nil || created || again.Incarnation != made.Incarnation {
		t.Errorf("the same again: %v, created %v", err, created)
	}
	r.Spec = &sandgate.Spec{WorkingDirectory: "/"}
	_, _, err = s.client.Create(ctx, r)
	wantReason(t, "another spec", err, "SANDBOX_SPEC_DIFFERS")
}

func deleteEndsCommands(ctx context.Context, t T, s *Suite) {
	made := s.create(ctx, t, s.request(s.newID("delete")))
	p := start(ctx, t, made, sandgate.ExecuteRequest{Shell: "echo ready; sleep 100", Timeout: time.Minute})
	untilOutput(t, p, "ready\n")
	s.delete(t, made)
	exit, err := p.Wait()
	if reason := exit.GetReason(); err != nil || reason != sandboxv1.ExitReason_EXIT_REASON_SANDBOX_STOPPED {
		t.Errorf("its command ended %v, %v", exit, err)
	}
	_, err = made.Execute(ctx, sandgate.ExecuteRequest{Shell: "true"})
	wantReason(t, "a command in what is gone", err, "SANDBOX_NOT_FOUND")
	if there, err := s.client.Delete(ctx, made.ID()); err != nil || there {
		t.Errorf("delete again: %v, %v", there, err)
	}
}

func listPages(ctx context.Context, t T, s *Suite) {
	want := map[string]bool{}
	for _, name := range []string{"list-a", "list-b", "list-c"} {
		r := s.request(s.newID(name))
		r.Labels["list"] = s.run
		made := s.create(ctx, t, r)
		t.Cleanup(func() { s.delete(t, made) })
		want[made.ID()] = true
	}
	for _, size := range []int32{1, 2, 100} {
		seen := map[string]bool{}
		for info, err := range s.client.List(ctx, sandgate.ListRequest{Labels: map[string]string{"list": s.run}, PageSize: size}) {
			if err != nil {
				t.Fatalf("pages of %d: %v", size, err)
			}
			if seen[info.GetSandboxId()] || !want[info.GetSandboxId()] {
				t.Errorf("pages of %d: %s is listed twice, or is none of these", size, info.GetSandboxId())
			}
			seen[info.GetSandboxId()] = true
		}
		if len(seen) != len(want) {
			t.Errorf("pages of %d: %d of %d are listed", size, len(seen), len(want))
		}
	}
	_, err := s.stub.ListSandboxes(ctx, &sandboxv1.ListSandboxesRequest{PageToken: "not a token!"})
	wantReason(t, "a malformed token", err, "PAGE_TOKEN_INVALID")
}

// errorsHaveReasons makes each call fail and checks the reason.
func errorsHaveReasons(ctx context.Context, t T, s *Suite) {
	s.sandbox(ctx, t, nil)
	gone := s.client.Sandbox("conformance-never-was")
	_, execute := gone.Execute(ctx, sandgate.ExecuteRequest{Shell: "true"})
	_, stat := gone.Stat(ctx, "/tmp")
	_, info := gone.Info(ctx)
	_, upload := gone.Upload(ctx, sandgate.File{Path: "/tmp/x", Content: strings.NewReader("x")})
	_, download := gone.Download(ctx, "/tmp/x")
	for call, err := range map[string]error{"execute": execute, "stat": stat, "get": info, "upload": upload, "download": download} {
		wantReason(t, call+" in a sandbox that is not there", err, "SANDBOX_NOT_FOUND")
	}
	_, none := s.shared.Execute(ctx, sandgate.ExecuteRequest{})
	_, program := s.shared.Execute(ctx, sandgate.ExecuteRequest{Argv: []string{"/no/such/program"}})
	_, directory := s.shared.Execute(ctx, sandgate.ExecuteRequest{Shell: "true", Cwd: "/no/such/directory"})
	_, missing := s.shared.Stat(ctx, "/no/such/file")
	_, _, template := s.client.Create(ctx, sandgate.CreateRequest{ID: s.newID("template"), Template: "no-such-template"})
	_, _, id := s.client.Create(ctx, sandgate.CreateRequest{ID: "no/such/id"})
	for want, err := range map[string]error{
		"REQUEST_INVALID": none, "COMMAND_NOT_FOUND": program, "WORKING_DIRECTORY_INVALID": directory,
		"FILE_NOT_FOUND": missing, "TEMPLATE_NOT_FOUND": template,
	} {
		wantReason(t, "a call that cannot be", err, want)
		if own := (*sandgate.Error)(nil); errors.As(err, &own) && (own.Message == "" || own.RequestID == "") {
			t.Errorf("%s comes without a message or a request's id: %v", want, err)
		}
	}
	wantReason(t, "a malformed id", id, "REQUEST_INVALID")
}
