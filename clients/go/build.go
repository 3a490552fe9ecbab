package sandgate

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc/codes"
)

// BuildRequest describes an image to build from a Dockerfile. Empty fields leave the
// choice to the program "sandgate".
type BuildRequest struct {
	// Context is the directory whose files the Dockerfile can copy. Default: the current one.
	Context string
	// Dockerfile is its path, which must be in Context. Default: Context/Dockerfile.
	Dockerfile string
	// Target is the stage to build. Default: the last one.
	Target string
	// BuildArgs are the values of ARG instructions. They are no place for secrets: the image
	// and the command line have them.
	BuildArgs map[string]string
	// Platform is that of the image, such as "linux/arm64"; needs a buildkitd.
	Platform string

	// Save writes the image to an archive that a server with the provider local on this
	// machine reads.
	Save bool
	// SaveDir is the directory for the archive, in place of the program's own; it implies Save.
	SaveDir string
	// Push pushes the image under this name, for every provider. Without a tag, the tag is the
	// hash of what was built. An image is either saved or pushed.
	Push string
	// Tag is another name for the image in the Docker daemon.
	Tag string

	// Pull asks the registries for newer images of the FROM instructions.
	Pull bool
	// NoCache runs all instructions again.
	NoCache bool
	// Network is the network of RUN instructions, such as "none" or "host".
	Network string

	// DockerHost is the address of the Docker daemon. Default: DOCKER_HOST.
	DockerHost string
	// BuildkitHost is the address of a buildkitd that builds instead. Default: BUILDKIT_HOST.
	BuildkitHost string
	// Program is the program to run. Default: "sandgate" in PATH.
	Program string
	// OnOutput is called with each line of the build's output. Default: it goes to the
	// standard error of this process.
	OnOutput func(line string)
}

const (
	// buildStop is how long the program has to end a build that is no longer wanted.
	buildStop = 10 * time.Second
	// buildTail is how many lines of output an error has.
	buildTail = 20

	installPage = "https://github.com/sandgate/sandgate/blob/main/docs/install.md"
)

// BuildImage builds an image from a Dockerfile and returns its name, for Spec.Image of a
// [CreateRequest]. What was built before is not built again. It runs "sandgate build",
// which needs a Docker daemon or a buildkitd, and no Sandgate server. When the context
// ends, so does the program.
//
// A program that cannot be run and a build that fails are [ErrBuild]. Error.Metadata then
// has the "exit_code" and the last lines of the "output".
func BuildImage(ctx context.Context, request BuildRequest) (string, error) {
	args, err := request.args()
	if err != nil {
		return "", err
	}
	program, err := exec.LookPath(cmp.Or(request.Program, "sandgate"))
	if err != nil {
		return "", local(ErrBuild, codes.NotFound, err,
			"cannot run %q: %v; install the program (%s), or set Program to its path", cmp.Or(request.Program, "sandgate"), err, installPage)
	}
	output := &buildOutput{report: request.OnOutput}
	var stdout bytes.Buffer
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdout, cmd.Stderr = &stdout, output
	cmd.Cancel = func() error {
		// Windows has no such signal.
		if cmd.Process.Signal(syscall.SIGTERM) == nil {
			return nil
		}
		return cmd.Process.Kill()
	}
	cmd.WaitDelay = buildStop
	err = cmd.Run()
	output.end()
	image := strings.TrimSpace(stdout.String())
	exited := (*exec.ExitError)(nil)
	switch {
	case ctx.Err() != nil:
		return "", cancelled(ctx)
	case errors.As(err, &exited):
		return "", output.failure(program, exited)
	case err != nil:
		return "", local(ErrBuild, codes.Unknown, err, "cannot run %s: %v", program, err)
	case image == "" || strings.ContainsAny(image, "\r\n"):
		return "", local(ErrBuild, codes.Unknown, nil, "%s build has printed no name of an image: is it the program of Sandgate?", program)
	}
	return image, nil
}

// args returns the arguments of the program.
func (r BuildRequest) args() ([]string, error) {
	if (r.Save || r.SaveDir != "") && r.Push != "" {
		return nil, local(ErrInvalidRequest, codes.InvalidArgument, nil, "an image is either saved or pushed: build it twice, which costs nothing the second time")
	}
	args := []string{"build"}
	add := func(flag, value string) {
		if value != "" {
			args = append(args, "--"+flag+"="+value)
		}
	}
	add("file", r.Dockerfile)
	add("target", r.Target)
	for _, name := range slices.Sorted(maps.Keys(r.BuildArgs)) {
		add("build-arg", name+"="+r.BuildArgs[name])
	}
	add("platform", r.Platform)
	if r.Save && r.SaveDir == "" {
		args = append(args, "--save")
	}
	add("save", r.SaveDir)
	add("push", r.Push)
	add("tag", r.Tag)
	if r.Pull {
		args = append(args, "--pull")
	}
	if r.NoCache {
		args = append(args, "--no-cache")
	}
	add("network", r.Network)
	add("docker-host", r.DockerHost)
	add("buildkit-host", r.BuildkitHost)
	return append(args, "--", cmp.Or(r.Context, ".")), nil
}

// buildOutput reports lines and keeps the last ones.
type buildOutput struct {
	report func(line string)
	open   []byte
	tail   []string
}

// Write implements io.Writer.
func (o *buildOutput) Write(data []byte) (int, error) {
	o.open = append(o.open, data...)
	for {
		line, rest, ok := bytes.Cut(o.open, []byte("\n"))
		if !ok {
			return len(data), nil
		}
		o.open = rest
		o.line(string(line))
	}
}

func (o *buildOutput) end() {
	if len(o.open) > 0 {
		o.line(string(o.open))
	}
	o.open = nil
}

func (o *buildOutput) line(text string) {
	text = strings.ToValidUTF8(text, "\uFFFD")
	if len(o.tail) == buildTail {
		o.tail = o.tail[1:]
	}
	o.tail = append(o.tail, text)
	if o.report != nil {
		o.report(text)
		return
	}
	fmt.Fprintln(os.Stderr, text)
}

// failure returns the error of a program that failed.
func (o *buildOutput) failure(program string, exited *exec.ExitError) error {
	metadata := map[string]string{"output": strings.Join(o.tail, "\n")}
	how := "was killed"
	if code := exited.ExitCode(); code >= 0 {
		metadata["exit_code"] = strconv.Itoa(code)
		how = "failed with exit code " + metadata["exit_code"]
	}
	message := program + " build " + how
	if len(o.tail) > 0 {
		message += ": " + o.tail[len(o.tail)-1]
	}
	return &Error{Code: codes.Unknown, Message: message, Metadata: metadata, class: ErrBuild, cause: exited}
}
