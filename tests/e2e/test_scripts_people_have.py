"""Scripts as people have them run as they are."""

from __future__ import annotations

import json
import os
import re
import signal
import stat

import pytest
from support.stage import Stage

TWO = ("--nproc-per-node", "2")
QUIET = {"OMP_NUM_THREADS": "1"}
BOUND_S = 60.0

FROM_ENVIRONMENT = """
import torch
import torch.distributed as dist
from torch.distributed.elastic.utils.distributed import get_free_port
from torch.distributed import is_torchelastic_launched
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main():
    dist.init_process_group("gloo")
    total = torch.ones(1)
    dist.all_reduce(total)
    assert is_torchelastic_launched()
    assert get_free_port() > 0
    print(f"sum {int(total)} at {dist.get_rank()}", flush=True)
    dist.barrier()
    dist.destroy_process_group()

main()
"""

RECORDED = """
import sys
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main():
    raise LookupError("the shard is not there")

try:
    main()
except LookupError:
    print("cleaning up\\n" * 5000, file=sys.stderr)
    sys.exit(7)
"""

LOADER = """
import os, time
import torch
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return torch.tensor(index)

def main():
    loader = DataLoader(Numbers(), batch_size=2, num_workers=2, persistent_workers=True)
    print("loaded", sum(int(batch.sum()) for batch in loader), "in", os.environ["RANK"], flush=True)
    if os.environ.get("STAYS"):
        time.sleep(3600)

if __name__ == "__main__":
    main()
"""

SPAWNS = """
import multiprocessing, os

def work(queue):
    queue.put(int(os.environ["RANK"]) + 10)

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    child = context.Process(target=work, args=(queue,))
    child.start()
    print("child says", queue.get(), flush=True)
    child.join()
"""

LIGHTNING = """
import os
import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, index):
        return self.layer(batch[0]).pow(2).mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

trainer = lightning.Trainer(
    accelerator="cpu", devices=int(os.environ["LOCAL_WORLD_SIZE"]), strategy="ddp", max_steps=3, logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
)
trainer.fit(Model(), DataLoader(TensorDataset(torch.randn(16, 4)), batch_size=2))
print("done", trainer.global_step, "in", trainer.world_size, "at", trainer.global_rank, flush=True)
"""

ACCELERATE = """
import torch
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(4, 1)
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
for step in range(3):
    accelerator.backward(model(torch.randn(2, 4)).pow(2).mean())
    optimizer.step()
assert isinstance(model, torch.nn.parallel.DistributedDataParallel)
print("done", step + 1, "in", accelerator.num_processes, "at", accelerator.process_index, flush=True)
accelerator.end_training()
"""

SHELL = """#!/bin/sh
echo "shell of $LOCAL_RANK with $1"
"""

# The bug of one rank shows at its peer first; the rank itself tells a moment later, while its group is already gone.
LATE = """
import os, sys, time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
if dist.get_rank() == 1:
    try:
        raise ValueError("the real cause")
    finally:
        dist.destroy_process_group()
        time.sleep(float(sys.argv[1]))
while True:
    dist.all_reduce(torch.ones(1))
"""

# It leaves by `os._exit`: without it torch's own threads may abort the interpreter on its way out.
LEAVES = """
import os
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
if dist.get_rank() == 1:
    os._exit(0)
while True:
    dist.all_reduce(torch.ones(1))
"""


def script(on: Stage, text: str) -> str:
    path = on.folder / "train.py"
    path.write_text(text)
    return str(path)


def test_a_process_group_from_the_environment(job: Stage) -> None:
    agent = job.launch(script(job, FROM_ENVIRONMENT), options=TWO, environment=QUIET)
    assert agent.ends(bound_s=BOUND_S) == 0, job.told()
    for rank in range(2):
        assert agent.said(rf"^\[rank {rank}\] sum 2 at {rank}$"), job.told()


def test_what_record_wrote_is_shown_though_stderr_holds_nothing_of_it_any_more(job: Stage) -> None:
    reply = job.folder / "reply.json"
    environment = {**QUIET, "TORCHELASTIC_ERROR_FILE": str(reply)}
    agent = job.launch(script(job, RECORDED), environment=environment)
    assert agent.ends(bound_s=BOUND_S) == 1, job.told()
    _, _, summary = agent.text.rpartition(f"job {job.run_id} failed")
    assert "LookupError: the shard is not there" in summary
    assert "train.py:7 in main" in summary
    message = json.loads(reply.read_text())["message"]
    assert message["message"] == "LookupError: the shard is not there"


def test_workers_of_a_loader_end_with_their_killed_rank(job: Stage) -> None:
    agent = job.launch(script(job, LOADER), environment={**QUIET, "STAYS": "1"})
    agent.says("loaded 28 in 0", bound_s=BOUND_S)
    keeper = agent.keeper()
    its = [pid for pid in agent.processes() if pid not in (agent.pid, keeper)]
    assert len(its) >= 3, "a rank and two workers of its loader"
    watched = [job.watch(pid) for pid in its]
    os.kill(min(its), signal.SIGKILL)
    assert agent.ends() == 1, job.told()
    job.all_gone(watched, 5.0)


def test_multiprocessing_of_the_script_is_left_alone(job: Stage) -> None:
    agent = job.launch(script(job, SPAWNS), options=TWO)
    assert agent.ends() == 0, job.told()
    for rank in range(2):
        assert agent.said(rf"^\[rank {rank}\] child says {rank + 10}$"), job.told()


def test_a_module_of_a_package(job: Stage) -> None:
    package = job.folder / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "train.py").write_text("import sys\nprint(__name__, __package__, sys.argv[1:])\n")
    agent = job.launch("package.train", "--lr", "1", options=("-m",))
    assert agent.ends() == 0, job.told()
    assert agent.said(r"^__main__ package \['--lr', '1'\]$"), job.told()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("text", [LIGHTNING, ACCELERATE], ids=["lightning", "accelerate"])
def test_frameworks_find_the_world_they_know(job: Stage, text: str) -> None:
    agent = job.launch(script(job, text), options=TWO, environment=QUIET)
    assert agent.ends(bound_s=90) == 0, job.told()
    for rank in range(2):
        assert agent.said(rf"^\[rank {rank}\] done 3 in 2 at {rank}$"), job.told()


def test_a_shell_script(job: Stage) -> None:
    path = job.folder / "train.sh"
    path.write_text(SHELL)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    agent = job.launch("./train.sh", "lr=1", options=(*TWO, "--no-python"))
    assert agent.ends() == 0, job.told()
    for rank in range(2):
        assert agent.said(rf"^\[rank {rank}\] shell of {rank} with lr=1$"), job.told()


@pytest.mark.parametrize(
    ("delay_s", "cause"),
    [
        ("0", r"rank 1 on \S+ .*\n\s+ValueError: the real cause"),
        # It was stopped before it could say anything: whoever lost it is still no culprit.
        (
            "60",
            r"rank 0 on \S+ lost its connection to .*, and no rank shows a cause; look first at rank 1 on",
        ),
    ],
)
def test_v13_a_rank_whose_peer_broke_is_not_blamed(job: Stage, delay_s: str, cause: str) -> None:
    agent = job.launch(script(job, LATE), delay_s, options=TWO, environment=QUIET)
    assert agent.ends(bound_s=BOUND_S) == 1, job.told()
    told = _cause(agent.text, job.run_id)
    assert re.search(r"\n    cause   (network: )?" + cause, told), job.told()


def test_a_rank_that_leaves_early_is_named_not_the_peer_it_left(job: Stage) -> None:
    agent = job.launch(script(job, LEAVES), options=TWO, environment=QUIET)
    assert agent.ends(bound_s=BOUND_S) == 1, job.told()
    cause = _cause(agent.text, job.run_id)
    assert "rank 1" in cause, job.told()
    assert "exited with code 0" in cause, job.told()


def _cause(text: str, run_id: str) -> str:
    """The closing report, without the part after the cause."""
    _, found, summary = text.rpartition(f"job {run_id} failed")
    assert found, text
    return summary.split("rounds  ")[0]
