"""`--requeue-command`: what one agent of the job runs, once in an attempt, when the scheduler is to start it again."""

from __future__ import annotations

import secrets
import shlex
import subprocess
from collections.abc import Callable, Sequence
from typing import Final

import anyio

from nvrx_async.etcd import EtcdClient, EtcdError, OutcomeUnknownError
from nvrx_async.etcd.types import Txn
from nvrx_async.job.codec import decode
from nvrx_async.job.keys import AttemptKeys
from nvrx_async.job.records import Outcome
from nvrx_async.job.requeue import Requeue, claimed, is_due

CLAIM_LIMIT_S: Final = 5.0
RUN_LIMIT_S: Final = 30.0
"""Longer than a scheduler's controller that is busy takes to answer."""
_SHOWN = 300

Tell = Callable[[str], None]


class RequeueHook:
    """The command of this agent, empty for none. `{attempt}` in it is the attempt that ended."""

    def __init__(self, command: Sequence[str], say: Tell, warn: Tell) -> None:
        self._command = tuple(command)
        self._say = say
        self._warn = warn
        self._settled = False

    async def settle(self, client: EtcdClient, keys: AttemptKeys, node_id: str, utc: str) -> None:
        """Run the command if the attempt has ended in a way that asks for it, and nobody else has.

        Never raises: what fails here is a warning, and the job has ended.
        """
        if not self._command or self._settled:
            return
        command = [word.replace("{attempt}", str(keys.attempt)) for word in self._command]
        told = shlex.join(command)
        try:
            with anyio.fail_after(CLAIM_LIMIT_S):
                mine = await self._claim(client, keys, Requeue(node_id, secrets.token_hex(8), told, utc))
        except (EtcdError, TimeoutError) as error:
            self._warn(f"it is not known whether the job was requeued: etcd did not answer ({error}): {told}")
            return
        if mine:
            await self._run(command, told)

    async def _claim(self, client: EtcdClient, keys: AttemptKeys, requeue: Requeue) -> bool:
        held = await client.get(keys.outcome)
        if held is None:
            return False  # others stay in the job
        self._settled = True
        outcome = decode(Outcome, keys.outcome, held.value)
        return is_due(outcome) and await _created(client, claimed(keys, requeue), keys, requeue)

    async def _run(self, command: Sequence[str], told: str) -> None:
        try:
            with anyio.fail_after(RUN_LIMIT_S):
                done = await anyio.run_process(
                    command, stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT, check=False
                )
        except OSError as error:
            self._warn(f"the job was not requeued: {told}: {error.strerror}")
        except TimeoutError:
            self._warn(f"the job may not be requeued: {told} took longer than {RUN_LIMIT_S:g} s")
        else:
            said = " ".join(done.stdout.decode(errors="replace").split())[:_SHOWN]
            if done.returncode:
                self._warn(f"the job was not requeued: {told} exited with code {done.returncode}: {said}")
            else:
                self._say(f"requeued: {told}" + (f": {said}" if said else ""))


async def _created(client: EtcdClient, txn: Txn, keys: AttemptKeys, requeue: Requeue) -> bool:
    try:
        return (await client.commit(txn)).succeeded
    except OutcomeUnknownError:
        held = await client.get(keys.requeue)
        if held is None:
            raise
        return decode(Requeue, keys.requeue, held.value).claim == requeue.claim
