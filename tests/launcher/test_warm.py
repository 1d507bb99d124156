"""A rank that was an idle process before is what a rank that starts now would be; the documented list is all."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import venv
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from keeper_kit import Bench, alive, bench, death, marked

from nvrx_launcher.keeper.linux import boottime_s
from nvrx_launcher.keeper_events import HookTold, IdleLost, RankExited, RankStarted, RoundGone
from nvrx_launcher.sweep import MARK
from nvrx_launcher.warm import plan
from nvrx_launcher.workers import RankCommand

PROBE = Path(__file__).parent / "warm_probe.py"
HEAVY = """
import os
import sys
import decimal  # loads more
SEEN = {name: os.environ.get(name) for name in ("LOCAL_RANK", "PYTHONPATH", "STATIC", "NVRX_HOOK")}
SEEN["path"] = sys.path
print("heavy is imported")
"""
PLACE = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "12345",
    "NVRX_ROUND": "1",
}


def probe_in(folder: Path, *, module: bool) -> tuple[str, ...]:
    """The probe beside `heavy`; returns the command's words."""
    shutil.copy(PROBE, folder / "warm_probe.py")
    (folder / "heavy.py").write_text(HEAVY)
    program = ("-m", "warm_probe") if module else (str(folder / "warm_probe.py"),)
    return (sys.executable, "-u", *program, "--lr", "0.1")


def command(b: Bench, words: tuple[str, ...], name: str, extra: dict[str, str]) -> RankCommand:
    env = {"PATH": os.environ["PATH"], MARK: b.tag, "LOCAL_RANK": "0", "STATIC": "x", **PLACE, **extra}
    paths = {f"{stream}_path": str(b.folder / f"{name}.{stream}") for stream in ("stdout", "stderr")}
    return b.command(0, words, env=env, **paths)


async def prepared(b: Bench, rank: RankCommand, imports: tuple[str, ...] = ("heavy",)) -> HookTold:
    """An idle process for this rank, ready."""
    b.keeper.prepare(plan.idle_command(rank), plan.hook("warm", imports))
    told = await b.until(HookTold)
    assert told.kind == "ready", told.text
    return told


async def run(b: Bench, rank: RankCommand, round: int) -> None:  # noqa: A002 - the domain's word
    b.keeper.good_until(boottime_s() + 60)
    b.keeper.start_ranks(round, [rank])
    await b.gone()


async def run_warm(b: Bench, rank: RankCommand, round: int) -> None:  # noqa: A002 - the domain's word
    told = await prepared(b, rank)
    release = plan.release(told.pid, plan.idle_command(rank), rank)
    assert release is not None
    await run(b, replace(rank, release=replace(release, wait_ms=0)), round)
    assert b.all(RankStarted)[-1] == RankStarted(round, 0, told.pid, warm=True)


def facts(b: Bench, name: str) -> dict[str, Any]:
    """What the probe said, split so that a difference is readable; without what is documented to differ."""
    out = (b.folder / f"{name}.stdout").read_text().splitlines()
    found = {"out": [line for line in out if not line.startswith("{")]}
    said = json.loads(next(line for line in out if line.startswith("{")))
    found |= {f"{part}.{key}": value for part, values in said.items() for key, value in values.items()}
    err = (b.folder / f"{name}.stderr").read_text()
    found["err"] = re.sub(r"0x[0-9a-f]+", "0x", err)
    return json.loads(re.sub(r"0x[0-9a-f]+", "0x", json.dumps(found)))


CASES = {
    "script": (False, {}),
    "module": (True, {}),
    "path": (False, {"PYTHONPATH": "{folder}/a:{folder}/b"}),
    "empty path": (False, {"PYTHONPATH": ""}),
    "users sitecustomize": (False, {"PYTHONPATH": "{folder}/users"}),
    "flags": (
        False,
        {"PYTHONWARNINGS": "error", "PYTHONHASHSEED": "7", "PYTHONDEVMODE": "1", "PYTHONUTF8": "1"},
    ),
    "safe path": (False, {"PYTHONSAFEPATH": "1", "PYTHONPATH": "{folder}"}),
    "no user site": (False, {"PYTHONNOUSERSITE": "1", "PYTHONDONTWRITEBYTECODE": "1"}),
    "buffered": (False, {}),
    "unbuffered by environment": (False, {"PYTHONUNBUFFERED": "1"}),
    "virtual environment": (True, {"VIRTUAL_ENV": "{folder}/venv"}),
}


def as_in_case(case: str, words: tuple[str, ...], folder: Path) -> tuple[str, ...]:
    """The command as this case has it: another interpreter, or without `-u`."""
    if case == "virtual environment":
        venv.create(folder / "venv", symlinks=True)
        return (str(folder / "venv" / "bin" / "python"), *words[1:])
    return tuple(word for word in words if word != "-u") if "buffered" in case else words


@pytest.mark.parametrize("case", CASES)
async def test_a_warm_rank_is_what_a_cold_one_is(tmp_path: Path, case: str) -> None:
    module, extra = CASES[case]
    extra = {name: value.replace("{folder}", str(tmp_path)) for name, value in extra.items()}
    (tmp_path / "users").mkdir()
    (tmp_path / "users" / "sitecustomize.py").write_text("import os\nprint('users', os.environ['STATIC'])\n")
    words = as_in_case(case, probe_in(tmp_path, module=module), tmp_path)
    async with bench(tmp_path) as b:
        await run(b, command(b, words, "first", extra), 0)  # writes the byte code that both others find
        await run(b, command(b, words, "cold", extra), 1)
        await run_warm(b, command(b, words, "warm", extra), 2)
        ends = b.all(RankExited)
    cold, warm = facts(b, "cold"), facts(b, "warm")
    if case == "users sitecustomize":
        # Interpreters that the probe starts say a line each, some at the same time.
        cold["out"], warm["out"] = sorted(cold["out"]), sorted(warm["out"])
    assert cold.keys() == warm.keys()
    assert len(cold) > 30
    different = {name: (cold[name], warm[name]) for name in cold if cold[name] != warm[name]}
    assert different == {}
    assert "RuntimeError: the end of the probe" in warm["err"]
    assert [end.exit_code for end in ends] == [1, 1, 1]


async def test_output_from_before_the_release_comes_first_in_the_rounds_files(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        await run_warm(b, command(b, probe_in(tmp_path, module=False), "warm", {}), 0)
    assert (tmp_path / "warm.stdout").read_text().startswith("heavy is imported\n")


async def test_an_idle_process_is_no_part_of_the_round(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        rank = command(b, probe_in(tmp_path, module=False), "warm", {})
        told = await prepared(b, rank)
        b.run("sleep 1000 & exit 3", round=0)
        gone = await b.gone()
        assert gone.unkillable == ()
        assert alive(told.pid)
        assert marked(b.tag).count(told.pid) == 1
        release = plan.release(told.pid, plan.idle_command(rank), rank)
        await run(b, replace(rank, release=release), 1)
        assert b.all(RankStarted)[-1].pid == told.pid


async def test_it_outlives_no_keeper(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        told = await prepared(b, command(b, probe_in(tmp_path, module=False), "warm", {}))
    await death(told.pid)


async def test_the_deadline_spares_it_since_it_is_no_rank_yet(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        rank = command(b, probe_in(tmp_path, module=False), "warm", {})
        told = await prepared(b, rank)
        b.run("exec sleep 1000", good_for_s=0.2)
        await b.gone()
        assert alive(told.pid)


async def test_who_died_is_told_and_its_rank_starts_cold(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        rank = command(b, probe_in(tmp_path, module=False), "warm", {})
        told = await prepared(b, rank)
        os.kill(told.pid, 9)
        lost = await b.until(IdleLost)
        assert (lost.local_rank, lost.pid, lost.why) == (0, told.pid, "it was ended by signal 9")
        release = plan.release(told.pid, plan.idle_command(rank), rank)
        await run(b, replace(rank, release=release), 0)
        assert not b.all(RankStarted)[-1].warm
        assert b.all(RankExited)[-1].exit_code == 1
        assert facts(b, "warm")["environment.python"]["RANK"] == "3"


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("raise ValueError('no such device')", "ValueError: no such device"),
        ("import os; os.environ.get('RANK')", "an import reads RANK, which is not known before the round"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("import os; print('boom', file=__import__('sys').stderr); os._exit(4)", "it exited with 4: boom"),
    ],
)
async def test_an_import_that_cannot_be_done_beforehand_is_told(
    tmp_path: Path, source: str, why: str
) -> None:
    words = probe_in(tmp_path, module=False)
    (tmp_path / "heavy.py").write_text(source)
    async with bench(tmp_path) as b:
        rank = command(b, words, "warm", {})
        b.keeper.prepare(plan.idle_command(rank), plan.hook("warm", ("heavy",)))
        told = await b.until(IdleLost) if "_exit" in source else await b.until(HookTold)
    assert (told.why if isinstance(told, IdleLost) else told.text) == why


async def test_a_second_idle_process_takes_the_place_of_the_first(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        rank = command(b, probe_in(tmp_path, module=False), "warm", {})
        first = await prepared(b, rank)
        second = await prepared(b, rank)
        await death(first.pid)
        assert alive(second.pid)
        b.keeper.discard(0)
        await death(second.pid)
        assert not b.all(IdleLost)


WATCHED = {
    "nothing": ("", ""),
    "environment": ("os.environ['OMP_NUM_THREADS'] = '4'", "OMP_NUM_THREADS"),
    "affinity": ("os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})", "(CPU affinity)"),
    "dlopen": ("sys.setdlopenflags(0x102)", "(dlopen flags)"),
}


@pytest.mark.parametrize("case", WATCHED)
async def test_a_watched_rank_tells_what_it_changes_before_it_imports(tmp_path: Path, case: str) -> None:
    line, changed = WATCHED[case]
    (tmp_path / "heavy.py").write_text("")
    script = tmp_path / "script.py"
    script.write_text(f"import os, sys\n{line}\nimport heavy\nprint(sorted(os.environ), sys.meta_path)\n")
    async with bench(tmp_path) as b:
        rank = command(b, (sys.executable, "-u", str(script)), "watched", {})
        b.keeper.good_until(boottime_s() + 60)
        b.keeper.start_ranks(0, [replace(rank, hook=plan.hook("watch", ("heavy",)))])
        told = await b.until(HookTold)
        await b.until(RoundGone)
    assert told.kind == "imports"
    assert told.text == f"heavy\t{tmp_path / 'heavy.py'}\t{changed}"
    out = (tmp_path / "watched.stdout").read_text()
    assert "NVRX_HOOK" not in out
    assert "PYTHONPATH" not in out
    assert "_Watch" not in out
