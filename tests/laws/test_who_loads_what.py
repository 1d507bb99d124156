"""Laws 1 and 2: agents never load torch, keepers load the standard library only, ranks neither gRPC nor etcd.

Imports inside functions count, since what is loaded late is loaded all the same.
"""

import subprocess
import sys

from support.source import ROOTS, modules, reached_from

OURS = {root.name for root in ROOTS}
HEAVY = {"torch", "numpy", "lightning", "pytorch_lightning"}
NAMES = [module.name for module in modules()]

AGENT = [name for name in NAMES if name.startswith("nvrx_launcher")]
KEEPER = [name for name in AGENT if "keeper" in name.split(".")]
RANK = [name for name in NAMES if name.startswith("nvrx_async.") and name.split(".")[-1].startswith("rank")]
RANK = [name for name in RANK if name != "nvrx_async.ranklink"]


def offending(entries: list[str], is_forbidden) -> list[str]:
    chains = reached_from(*entries)
    return [" -> ".join(chain) for name, chain in chains.items() if is_forbidden(name)]


def top(name: str) -> str:
    return name.partition(".")[0]


def test_the_agent_never_imports_torch():
    assert not offending(AGENT, lambda name: top(name) in HEAVY)


def test_the_keeper_imports_the_standard_library_only():
    def is_foreign(name: str) -> bool:
        return top(name) not in {"nvrx_launcher"} | sys.stdlib_module_names

    assert not offending(KEEPER, is_foreign)


def test_ranks_import_neither_grpc_nor_the_etcd_room():
    def is_agents(name: str) -> bool:
        return top(name) in {"grpc", "aetcd"} or name.startswith(("nvrx_async.etcd", "nvrx_launcher"))

    assert not offending(RANK, is_agents)


def test_telemetry_names_import_nothing():
    (names,) = [module for module in modules() if module.name == "nvrx_telemetry.semconv"]
    assert {name for name, _ in names.imports()} <= {"__future__", "__future__.annotations"}
    program = (
        "import __future__, sys; before = set(sys.modules); import nvrx_telemetry.semconv; "
        "sys.exit(', '.join(set(sys.modules) - before - {'nvrx_telemetry', 'nvrx_telemetry.semconv'}) or None)"
    )
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert loaded.returncode == 0, loaded.stderr


def test_the_agent_loads_no_torch_when_it_is_imported():
    program = "import importlib, sys\n" + "".join(
        f"importlib.import_module({name!r})\n"
        for name in AGENT
        if not name.endswith("__main__") and ".warm" not in name
    )
    program += f"sys.exit(', '.join(sys.modules.keys() & {HEAVY!r}) or None)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert loaded.returncode == 0, loaded.stderr
