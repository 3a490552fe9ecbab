package conformance

import "context"

// programs are ordinary programs that a sandbox's protections must not break.
// Each runs in a directory of its own.
var programs = []program{
	{name: "python_threads", needs: []string{"python3"}, want: "190 20\n", script: `python3 -c '
import queue, threading
numbers, results = queue.Queue(), []
barrier = threading.Barrier(20)
def add():
    barrier.wait(30)
    results.append(numbers.get(timeout=30))
threads = [threading.Thread(target=add) for _ in range(20)]
for t in threads: t.start()
for n in range(20): numbers.put(n)
for t in threads: t.join()
print(sum(results), len(results))'`},
	{name: "python_subprocess", needs: []string{"python3"}, want: "49995000 7 caught\n", script: `python3 -c '
import multiprocessing, subprocess, sys
def square(n): return n
if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(4) as pool: total = sum(pool.map(square, range(10000)))
    code = subprocess.run([sys.executable, "-c", "raise SystemExit(7)"]).returncode
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as p: out = p.communicate("caught")[0]
    print(total, code, out)'`},
	{name: "node_workers", needs: []string{"node"}, want: "0 1 4 9 child\n", script: `cat >main.js <<'END'
const { Worker, isMainThread, parentPort, workerData } = require("node:worker_threads");
const { execFileSync } = require("node:child_process");
if (isMainThread) {
  const square = (n) => new Promise((resolve, reject) =>
    new Worker(__filename, { workerData: n }).on("message", resolve).on("error", reject));
  Promise.all([0, 1, 2, 3].map(square)).then((squares) =>
    console.log(...squares, execFileSync("echo", ["child"]).toString().trim()));
} else {
  parentPort.postMessage(workerData * workerData);
}
END
node main.js`},
	{name: "git", needs: []string{"git"}, want: "1 copied\n", script: `set -e
export HOME=$PWD GIT_CONFIG_NOSYSTEM=1
git init -q origin
cd origin
echo copied >file
git add file
git -c user.name=name -c user.email=name@example.com commit -q -m first
cd ..
git clone -q origin clone
git -C clone fsck --full >/dev/null
echo $(git -C clone rev-list --count HEAD) $(cat clone/file)`},
	{name: "compiler", needs: []string{"cc"}, want: "hello from a thread\n", script: `cat >hello.c <<'END'
#include <pthread.h>
#include <stdio.h>
static void *hello(void *text) { puts(text); return 0; }
int main(void) {
	pthread_t thread;
	return pthread_create(&thread, 0, hello, "hello from a thread") || pthread_join(thread, 0);
}
END
cc -O1 -pthread -o hello hello.c && ./hello`},
	{name: "sqlite", needs: []string{"sqlite3"}, want: "wal\n500500\nok\n", script: `sqlite3 db 'PRAGMA journal_mode = WAL;
CREATE TABLE t (n INTEGER);
WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 1000) INSERT INTO t SELECT n FROM r;
SELECT sum(n) FROM t;
PRAGMA integrity_check;'`},
	{name: "python_sqlite", needs: []string{"python3"}, want: "wal 200 ok\n", script: `python3 -c '
import sqlite3, threading
def connect(): return sqlite3.connect("db", timeout=30)
db = connect()
mode = db.execute("PRAGMA journal_mode = WAL").fetchone()[0]
db.execute("CREATE TABLE t (n INTEGER)")
def insert():
    own = connect()
    for n in range(50):
        with own: own.execute("INSERT INTO t VALUES (?)", (n,))
    own.close()
threads = [threading.Thread(target=insert) for _ in range(4)]
for t in threads: t.start()
for t in threads: t.join()
print(mode, db.execute("SELECT count(*) FROM t").fetchone()[0], db.execute("PRAGMA integrity_check").fetchone()[0])'`},
	{name: "fork_and_exec_under_load", want: "200 0\n", script: `i=0 failed=0
while [ $i -lt 200 ]; do
	running=
	for _ in 1 2 3 4; do
		i=$((i + 1))
		sh -c "echo $i >in.$i && exec cat in.$i" >out.$i &
		running="$running $!"
	done
	for child in $running; do wait $child || failed=$((failed + 1)); done
done
n=0 right=0
while [ $n -lt 200 ]; do
	n=$((n + 1))
	read -r got <out.$n
	[ "$got" = $n ] && right=$((right + 1))
done
echo $right $failed`},
}

// program is a script whose output and exit code are known.
type program struct {
	name   string
	needs  []string // names of programs
	script string
	want   string // standard output
}

const groupPrograms = "programs"

func programCases() []SandboxCase {
	cases := []SandboxCase{{Name: "C24_program_go", Group: groupPrograms, run: goProgram}}
	for _, p := range programs {
		c := SandboxCase{Name: "C24_program_" + p.name, Group: groupPrograms, run: p.run}
		for _, name := range p.needs {
			c.Programs = append(c.Programs, "command -v "+name)
		}
		cases = append(cases, c)
	}
	return cases
}

func (p program) run(ctx context.Context, t T, s Sandbox) {
	t.Helper()
	r := s.sh(ctx, t, "mkdir program && cd program && {\n"+p.script+"\n}")
	if r.code() != 0 || r.stdout != p.want {
		t.Errorf("want %q and exit code 0, got %v", p.want, r)
	}
	s.removeProgram(ctx, t)
}

// goProgram runs a static program, which uses no C library.
func goProgram(ctx context.Context, t T, s Sandbox) {
	if len(s.GoProgram) == 0 {
		t.Skipf("no static build of conformance/goprogram was given")
	}
	if r := s.upload(ctx, t, file{s.dir + "/program/go", s.GoProgram})[0]; r.GetError() != nil {
		t.Fatalf("upload: %v", r)
	}
	if r := s.sh(ctx, t, "chmod +x program/go && exec program/go"); r.code() != 0 || r.stdout != "ok\n" {
		t.Errorf("want ok and exit code 0, got %v", r)
	}
	s.removeProgram(ctx, t)
}

func (s Sandbox) removeProgram(ctx context.Context, t T) {
	t.Helper()
	if r := s.sh(ctx, t, "rm -rf program"); r.code() != 0 {
		t.Errorf("remove the program's directory: %v", r)
	}
}
