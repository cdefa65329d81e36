"""Real SLURM daemons, and real Ray nodes on test hosts of their own, all on this machine and gone with the tests."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

SCRIPTS = Path(__file__).parents[3] / "shared/cluster"
ADDRESS = "10.77.0.11:6379"


def missing(*programs: str) -> str:
    """Return why tests with these programs cannot run here; nothing if they can."""
    if os.geteuid() != 0:
        return "these tests start daemons and network namespaces: they need root"
    if not SCRIPTS.is_dir():
        return f"the scripts that start a cluster are not in {SCRIPTS}"
    lacking = [program for program in programs if shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin") is None]
    return f"not installed: {', '.join(lacking)}" if lacking else ""


def until(true: Callable[[], object], seconds: float = 60.0, what: str = "") -> None:
    """Wait for something to be true, with a deadline."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"not within {seconds} s: {what or true}"
        time.sleep(0.05)


def command(here: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``shoal`` in a directory, to its end."""
    return subprocess.run(
        [sys.executable, "-m", "shoal.cli", *arguments],
        cwd=here,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=120,
        check=False,
    )


def end(pids: list[int]) -> None:
    """End processes that a test has started, and wait for them."""
    there = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    for process in there:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL)
    psutil.wait_procs(there, timeout=10)


# ---- SLURM ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Three node daemons n1, n2, n3 with four CPUs each; the directory has their configuration."""
    if reason := missing("slurmctld", "slurmd", "munged", "srun"):
        pytest.skip(reason)
    place = tmp_path_factory.mktemp("slurm")
    before = {p.pid for p in psutil.process_iter() if p.name() == "munged"}
    environment = {**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin"}
    subprocess.run(["bash", str(SCRIPTS / "slurm-up.sh"), str(place)], check=True, env=environment)
    os.environ["SLURM_CONF"] = str(place / "slurm.conf")
    until(
        lambda: "idle" in subprocess.run(["sinfo", "-h"], capture_output=True, text=True, check=False).stdout,
        what="nodes idle",
    )
    yield place
    subprocess.run(["scancel", "--full", "--user=root"], check=False)
    until(
        lambda: not subprocess.run(["squeue", "-h"], capture_output=True, text=True, check=False).stdout,
        60,
        "jobs gone",
    )
    subprocess.run(["bash", str(SCRIPTS / "slurm-down.sh"), str(place)], check=False)
    del os.environ["SLURM_CONF"]
    ours = [p.pid for p in psutil.process_iter() if p.name() in {"slurmd", "slurmctld"} and str(place) in _files(p)]
    end(ours + [p.pid for p in psutil.process_iter() if p.name() == "munged" and p.pid not in before])


def _files(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return " ".join(file.path for file in process.open_files()) + " ".join(process.environ().values())
    return ""


# ---- hosts, and Ray on them -----------------------------------------------------------------------------------------


class Hosts:
    """Three hosts h1, h2, h3 in network namespaces, with addresses of their own."""

    def __init__(self, home: Path):
        self.home = home
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("RAY_")},
            "HOME": str(home),
            "SHOAL_STORAGE_PATH": str(home / "runs"),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "RAY_USAGE_STATS_ENABLED": "0",
        }

    def start(self, host: int, *command: str, **more: object) -> subprocess.Popen[str]:
        """Start a program on a host."""
        # Ray's files lie in /tmp/ray, which is each host's own.
        disk = self.home / f"ray{host}"
        disk.mkdir(exist_ok=True)
        Path("/tmp/ray").mkdir(exist_ok=True)
        alone = ["sh", "-c", f'mount --bind {disk} /tmp/ray && exec "$@"', "sh"]
        return subprocess.Popen(
            ["ip", "netns", "exec", f"h{host}", *alone, *command],
            env=self.environment,
            text=True,
            cwd=self.home,
            **more,  # type: ignore[call-overload]
        )

    def run(self, host: int, *command: str, timeout: float = 90.0) -> subprocess.CompletedProcess[str]:
        """Run a program on a host and return what it printed."""
        with self.start(host, *command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
            out, _ = process.communicate(timeout=timeout)
        return subprocess.CompletedProcess(command, process.returncode, out, "")

    def shoal(self, host: int, *arguments: str, timeout: float = 90.0) -> subprocess.CompletedProcess[str]:
        """Run the command shoal on a host."""
        return self.run(host, sys.executable, "-m", "shoal.cli", *arguments, timeout=timeout)

    def cut(self, host: int) -> None:
        """Cut the cable of a host."""
        subprocess.run(["ip", "-n", f"h{host}", "link", "set", "eth0", "down"], check=True)

    def mend(self, host: int) -> None:
        """Put the cable of a host back."""
        subprocess.run(["ip", "-n", f"h{host}", "link", "set", "eth0", "up"], check=True)
        subprocess.run(["ip", "-n", f"h{host}", "route", "replace", "default", "via", "10.77.0.1"], check=True)

    def join(self, host: int, *more: str) -> None:
        """Make a host part of the cluster, whose head is the first one."""
        where = ["--address", ADDRESS] if host > 1 else ["--head"]
        done = self.shoal(host, "start", *where, "--node-ip-address", f"10.77.0.1{host}", "--num-cpus", "2", *more)
        assert done.returncode == 0, done.stdout

    def leave(self, host: int) -> None:
        """Switch a host off."""
        end(self.pids(host))

    def pids(self, host: int) -> list[int]:
        """Return the processes of a host."""
        told = subprocess.run(["ip", "netns", "pids", f"h{host}"], capture_output=True, text=True, check=False)
        return [int(pid) for pid in told.stdout.split()]

    def workers(self, host: int) -> list[int]:
        """Return the processes of shoal's host program and workers on a host."""
        found = []
        for pid in self.pids(host):
            with contextlib.suppress(psutil.Error):
                if "shoal._host" in psutil.Process(pid).cmdline():
                    found.append(pid)
        return found


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    if reason := missing("ip"):
        pytest.skip(reason)
    files = [Path(f"/etc/netns/h{number}") for number in (1, 2, 3)]
    for directory in files:  # names that are found, or found wanting, at once: there is no name server
        directory.mkdir(parents=True, exist_ok=True)
        known = "".join(f"10.77.0.1{number} h{number}\n" for number in (1, 2, 3))
        (directory / "hosts").write_text(f"127.0.0.1 localhost\n10.77.0.1 host0\n{known}")
        (directory / "resolv.conf").write_text("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
        (directory / "nsswitch.conf").write_text("hosts: files\n")
    _take_down()
    subprocess.run(["bash", str(SCRIPTS / "hosts-up.sh")], check=True)
    there = Hosts(tmp_path_factory.mktemp("home"))
    yield there
    for number in (1, 2, 3):
        there.leave(number)
    _take_down()
    for directory in files:
        shutil.rmtree(directory)
    with contextlib.suppress(OSError):
        files[0].parent.rmdir()


def _take_down() -> None:
    """Remove the hosts. A namespace outlives its name while its sockets close, so cables are removed by themselves."""
    subprocess.run(["bash", str(SCRIPTS / "hosts-down.sh")], check=True, capture_output=True)
    for number in (1, 2, 3):
        subprocess.run(["ip", "link", "del", f"shoalv{number}"], check=False, capture_output=True)


@pytest.fixture(scope="module")
def cluster(hosts: Hosts) -> Hosts:
    """A Ray cluster on the three hosts; the second has two GPUs, as far as Ray knows."""
    pytest.importorskip("ray", reason="Ray is not installed here")
    hosts.join(1)
    hosts.join(2, "--num-gpus", "2", "--labels", "zone=b")
    hosts.join(3)
    return hosts
