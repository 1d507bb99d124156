"""A wall clock that jumps for chosen processes only: a library that is loaded before libc and adds an offset.

`date -s` would move the clock of everybody on the machine. The offset, nanoseconds, lies in a file that all these
processes map, so that it can change while they run. Monotonic clocks are left alone, as a real step leaves them.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int64_t *offset;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("CLOCK_OFFSET_FILE");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *at = mmap(0, 8, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (at != MAP_FAILED) offset = at;
}

int clock_gettime(clockid_t clock, struct timespec *out) {
    int result = syscall(SYS_clock_gettime, clock, out);
    if (result == 0 && offset && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t ns = out->tv_sec * 1000000000LL + out->tv_nsec + *(volatile int64_t *)offset;
        out->tv_sec = ns / 1000000000LL;
        out->tv_nsec = ns % 1000000000LL;
    }
    return result;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone) {
    struct timespec now;
    (void)zone;
    int result = clock_gettime(CLOCK_REALTIME, &now);
    out->tv_sec = now.tv_sec;
    out->tv_usec = now.tv_nsec / 1000;
    return result;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}
"""


class SteppedClock:
    """The library, and the offset of all that run with `environment`. Needs a C compiler."""

    def __init__(self, folder: Path) -> None:
        self._library, self._file = folder / "clock_step.so", folder / "clock_offset"
        self.step_to(0)
        source = folder / "clock_step.c"
        source.write_text(_SOURCE)
        compiler = shutil.which("cc") or "gcc"
        subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", self._library, source], check=True)

    @property
    def environment(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self._library), "CLOCK_OFFSET_FILE": str(self._file)}

    def step_to(self, offset_s: int) -> None:
        """From now on the wall clock is this far off."""
        with self._file.open("r+b" if self._file.exists() else "w+b") as file:
            file.write((offset_s * 1_000_000_000).to_bytes(8, "little", signed=True))
