package build

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
)

// bases returns the images that the stages of a Dockerfile begin with, sorted. Images
// that cannot be named without running the builder are left out: those with unknown
// variables.
func bases(text []byte, args map[string]string) []string {
	known := make(map[string]string)
	stages := make(map[string]bool)
	found := make(map[string]bool)
	for _, words := range instructions(string(text)) {
		switch instruction := strings.ToUpper(words[0]); {
		case instruction == "ARG" && len(stages) == 0 && len(found) == 0:
			// Only those before the first FROM count in a FROM.
			for _, word := range words[1:] {
				name, value, ok := strings.Cut(word, "=")
				if given, has := args[name]; has {
					value, ok = given, true
				}
				if ok {
					known[name] = strings.Trim(value, `"'`)
				}
			}
		case instruction == "FROM":
			image, stage := from(words[1:], known)
			if image != "" && image != "scratch" && !stages[strings.ToLower(image)] {
				found[image] = true
			}
			stages[strings.ToLower(stage)] = true
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// from returns the image and the name of a stage. The image is empty if it is unknown.
func from(words []string, args map[string]string) (image, stage string) {
	for len(words) > 0 && strings.HasPrefix(words[0], "--") {
		words = words[1:]
	}
	if len(words) == 0 {
		return "", ""
	}
	if len(words) >= 3 && strings.EqualFold(words[1], "AS") {
		stage = words[2]
	}
	complete := true
	image = os.Expand(words[0], func(name string) string {
		value, ok := args[name]
		complete = complete && ok
		return value
	})
	if !complete {
		return "", stage
	}
	return image, stage
}

// heredoc is the word that begins one, with the line that ends it.
var heredoc = regexp.MustCompile(`^\d*<<-?["']?([A-Za-z0-9_.-]+)["']?$`)

// instructions returns the words of each instruction. Continued lines are joined,
// comments, empty lines and heredocs dropped.
func instructions(text string) [][]string {
	var out [][]string
	open := ""
	rest := slices.Collect(strings.Lines(text))
	for len(rest) > 0 {
		line := strings.TrimSpace(rest[0])
		rest = rest[1:]
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		part, continued := strings.CutSuffix(line, `\`)
		open += part
		if continued {
			open += " "
			continue
		}
		if words := strings.Fields(open); len(words) > 0 {
			out = append(out, words)
			rest = withoutHeredocs(words, rest)
		}
		open = ""
	}
	if words := strings.Fields(open); len(words) > 0 {
		out = append(out, words)
	}
	return out
}

// withoutHeredocs returns the lines after those that belong to an instruction.
func withoutHeredocs(words, lines []string) []string {
	if !slices.Contains([]string{"RUN", "COPY", "ADD"}, strings.ToUpper(words[0])) {
		return lines
	}
	for _, word := range words[1:] {
		begin := heredoc.FindStringSubmatch(word)
		if begin == nil {
			continue
		}
		end := slices.IndexFunc(lines, func(line string) bool { return strings.TrimSpace(line) == begin[1] })
		lines = lines[end+1:] // all, if none ends it
	}
	return lines
}
