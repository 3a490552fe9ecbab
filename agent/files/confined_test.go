package files_test

import (
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandgate/sandgate/agent/files"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// TestNoCallLeavesTheRootDirectoryByLinks runs every call beneath a root directory against links that lead
// out, with the kernel's help and without.
func TestNoCallLeavesTheRootDirectoryByLinks(t *testing.T) {
	for name, cfg := range map[string]files.Config{"kernel": {}, "walk": {NoOpenat2: true}} {
		t.Run(name, func(t *testing.T) { confined(t, cfg) })
	}
}

func confined(t *testing.T, cfg files.Config) {
	svc, c := start(t, cfg)
	base := t.TempDir()
	root, outside := base+"/root", base+"/outside"
	reset := func() {
		if err := os.RemoveAll(root); err != nil {
			t.Fatal(err)
		}
		write(t, outside+"/f", "secret needle")
		write(t, root+"/f", "inside needle")
		for link, target := range map[string]string{"/file": outside + "/f", "/dir": "../outside", "/new": outside + "/new"} {
			if err := os.Symlink(target, root+link); err != nil {
				t.Fatal(err)
			}
		}
	}
	reset()
	for _, virtual := range []bool{false, true} {
		at := root
		if virtual {
			at = ""
		}
		policy := &sandboxv1.AccessPolicy{RootDir: root, Virtual: virtual}
		ctx := called(t.Context(), nil, policy)
		calls := map[string]func(path string) error{
			"stat": func(p string) error {
				_, err := svc.StatFile(ctx, &sandboxv1.StatFileRequest{Path: p + "/x/y"})
				return err
			},
			"list": func(p string) error {
				_, err := svc.ListDirectory(ctx, &sandboxv1.ListDirectoryRequest{Path: p})
				return err
			},
			"mkdir": func(p string) error {
				_, err := svc.MakeDirectory(ctx, &sandboxv1.MakeDirectoryRequest{Path: p + "/made/x", Parents: true})
				return err
			},
			"move in": func(p string) error {
				_, err := svc.MoveFile(ctx, &sandboxv1.MoveFileRequest{Source: p + "/f", Destination: at + "/stolen"})
				return err
			},
			"move out": func(p string) error {
				_, err := svc.MoveFile(ctx, &sandboxv1.MoveFileRequest{Source: at + "/f", Destination: p + "/moved"})
				return err
			},
			"remove": func(p string) error {
				_, err := svc.RemoveFile(ctx, &sandboxv1.RemoveFileRequest{Path: p + "/f", Recursive: true})
				return err
			},
			"read": func(p string) error {
				_, err := svc.ReadLines(ctx, &sandboxv1.ReadLinesRequest{Path: p})
				return err
			},
			"write": func(p string) error {
				_, err := svc.WriteFile(ctx, &sandboxv1.WriteFileRequest{Path: p})
				return err
			},
			"edit": func(p string) error {
				_, err := svc.EditFile(ctx, &sandboxv1.EditFileRequest{Path: p, OldText: []byte("secret")})
				return err
			},
			"search": func(p string) error {
				_, err := search(t, c, &sandboxv1.SearchFilesRequest{Path: p, Pattern: "needle"}, policy)
				return err
			},
			"glob": func(p string) error {
				_, err := globFiles(t, c, &sandboxv1.GlobFilesRequest{Path: p, Pattern: "*"}, policy)
				return err
			},
		}
		for name, call := range calls {
			for _, link := range []string{"/file", "/dir", "/dir/f"} {
				// Under a virtual root the links lead to what is not there.
				reset()
				switch got := reason(t, call(at+link)); {
				case got == "PATH_INVALID", virtual && got == "FILE_NOT_FOUND":
				case virtual && (name == "write" || name == "mkdir") && got == "":
					// They made their own /outside below the root.
				default:
					t.Errorf("virtual %v, %s of %s: %q", virtual, name, link, got)
				}
			}
		}
		reset()
		got, err := receive(t, c, []*sandboxv1.AccessPolicy{policy}, &sandboxv1.DownloadItem{Path: at + "/file"}, &sandboxv1.DownloadItem{Path: at + "/dir/f"}, &sandboxv1.DownloadItem{Path: at + "/f"})
		if err != nil || got[2].Content != "inside needle" || !virtual && (got[0].Error != "PATH_INVALID" || got[1].Error != "PATH_INVALID") {
			t.Errorf("virtual %v, download: %v, %v", virtual, got, err)
		}
		results, err := sendOnly(ctx, t, c, header(&sandboxv1.UploadHeader{Path: at + "/new"}), trailer(nil),
			header(&sandboxv1.UploadHeader{Path: at + "/dir/up"}), trailer(nil))
		if err != nil || !virtual && !cmp.Equal(outcomes(results), []string{"PATH_INVALID", "PATH_INVALID"}) {
			t.Errorf("virtual %v, upload: %v, %v", virtual, results, err)
		}
		reset()
		resp, err := search(t, c, &sandboxv1.SearchFilesRequest{Path: at + "/", Pattern: "needle"}, policy)
		if err != nil || !cmp.Equal(hits(at, resp), []string{"/f:1:inside needle"}) {
			t.Errorf("virtual %v, search: %v, %v", virtual, resp, err)
		}
		files, err := globFiles(t, c, &sandboxv1.GlobFilesRequest{Path: at + "/", Pattern: "f*", BarePatternShallow: true, IncludeLinks: true}, policy)
		if err != nil || !virtual && !cmp.Equal(found(at, files), []string{"/f"}) {
			t.Errorf("virtual %v, glob: %v, %v", virtual, files, err)
		}
		if diff := cmp.Diff([]string{"f"}, names(t, outside)); diff != "" || read(t, outside+"/f") != "secret needle" {
			t.Fatalf("outside (-want +got):\n%s", diff)
		}
	}
}
