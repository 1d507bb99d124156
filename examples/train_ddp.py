"""A small real training: two spirals, a perceptron, DistributedDataParallel on gloo. No download, CPU only.

    torchrun --standalone --nproc-per-node 2 --max-restarts 3 examples/train_ddp.py --out /tmp/spirals
    nvrx-launch --standalone --nproc-per-node 2 --max-restarts 3 examples/train_ddp.py --out /tmp/spirals

Every few steps rank 0 saves model, optimizer and step to one file; a restarted run continues there. All
randomness depends on seed, step and rank alone, so a run that was interrupted ends with bit for bit the
weights of one that was not (same world size). `--crash-rank` makes one rank fail, once per output folder.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

SEED = 20260101
BATCH_PER_RANK = 64


class CrashOnRequestError(Exception):
    """Raised by `--crash-kind raise`."""


def main() -> None:
    """Train, saving and resuming; rank 0 prints."""
    arguments = parse_arguments()
    arguments.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    try:
        train(arguments)
    finally:
        dist.destroy_process_group()


def train(arguments: argparse.Namespace) -> None:
    """The training loop."""
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    model = nn.Sequential(nn.Linear(2, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 2))
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    settle_gradient_layout(parallel, optimizer)
    checkpoint = arguments.out / "checkpoint.pt"
    step, loss_value = load(checkpoint, model, optimizer)
    say(f"{'resumed' if step else 'started'} at step {step}, world size {dist.get_world_size()}")

    while step < arguments.steps:
        crash_if_asked(arguments, rank, step)
        points, labels = batch(step, rank)
        loss = nn.functional.cross_entropy(parallel(points), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % arguments.save_every == 0 or step == arguments.steps:
            loss_value = mean_over_ranks(loss)
            say(f"step {step}  loss {loss_value:.4f}")
            if rank == 0:
                save(checkpoint, step, loss_value, model, optimizer)

    say(f"result: loss={loss_value:.6f} weights={digest(model)}")


def settle_gradient_layout(parallel: DistributedDataParallel, optimizer: torch.optim.Optimizer) -> None:
    """One backward pass that counts for nothing.

    After the first one DDP orders its gradients anew, and beyond two ranks the order of summation, so the last
    bits, follow from the layout. A run that resumes must sum each step as one that was never interrupted.
    """
    points, labels = batch(0, dist.get_rank())
    nn.functional.cross_entropy(parallel(points), labels).backward()
    optimizer.zero_grad()


def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Noisy points of two spirals: the same for the same step and rank, in whichever run."""
    random = torch.Generator().manual_seed(SEED + step * 100_003 + rank)
    labels = torch.randint(0, 2, (BATCH_PER_RANK,), generator=random)
    radius = torch.rand(BATCH_PER_RANK, generator=random)
    angle = 3 * torch.pi * radius + torch.pi * labels
    points = 4 * torch.stack((radius * torch.cos(angle), radius * torch.sin(angle)), dim=1)
    noise = torch.randn(BATCH_PER_RANK, 2, generator=random)
    return points + 0.05 * noise, labels


def mean_over_ranks(loss: torch.Tensor) -> float:
    """The loss of the global batch."""
    total = loss.detach().clone()
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


def load(checkpoint: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[int, float]:
    """Step and loss to continue from, rank 0's checkpoint loaded into every rank."""
    holder: list[dict[str, Any] | None] = [None]
    if dist.get_rank() == 0 and checkpoint.exists():
        holder[0] = torch.load(checkpoint, weights_only=True)
    dist.broadcast_object_list(holder, src=0)
    state = holder[0]
    if state is None:
        return 0, float("nan")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["step"], state["loss"]


def save(
    checkpoint: Path, step: int, loss: float, model: nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """Replace the checkpoint as a whole: whenever this process dies, the file is the old or the new one."""
    state = {"step": step, "loss": loss, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    unfinished = checkpoint.with_suffix(".unfinished")
    with unfinished.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    unfinished.rename(checkpoint)
    folder = os.open(checkpoint.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the rename, too, must outlive a crash of the machine
    finally:
        os.close(folder)


def digest(model: nn.Module) -> str:
    """SHA-256 over all parameters."""
    sha = hashlib.sha256()
    for parameter in model.parameters():
        sha.update(parameter.detach().numpy().tobytes())
    return sha.hexdigest()


def crash_if_asked(arguments: argparse.Namespace, rank: int, step: int) -> None:
    """Fail as `--crash-*` say, once per output folder: a marker file remembers."""
    if rank != arguments.crash_rank or step != arguments.crash_step:
        return
    marker = arguments.out / "crashed"
    if marker.exists():
        return
    marker.touch()
    match arguments.crash_kind:
        case "raise":
            raise CrashOnRequestError(f"rank {rank} was asked to fail at step {step}")
        case "exit":
            os._exit(1)
        case "sigkill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)


def say(line: str) -> None:
    """Print from rank 0."""
    if dist.get_rank() == 0:
        print(line, flush=True)


def parse_arguments() -> argparse.Namespace:
    """Options of the training and of the crash that it can rehearse."""
    parser = argparse.ArgumentParser(description="Train a small network on two spirals, with checkpoints.")
    parser.add_argument("--steps", type=int, default=300, help="steps to train (default 300)")
    parser.add_argument("--save-every", type=int, default=50, help="steps between checkpoints (default 50)")
    parser.add_argument("--out", type=Path, required=True, help="folder of the checkpoint")
    parser.add_argument("--crash-rank", type=int, help="rank that fails once")
    parser.add_argument(
        "--crash-step", type=int, default=130, help="step before which it fails (default 130)"
    )
    parser.add_argument(
        "--crash-kind",
        choices=["exit", "raise", "sigkill", "segfault"],
        default="sigkill",
        help="how it fails",
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
