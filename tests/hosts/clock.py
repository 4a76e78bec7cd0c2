"""A library that has the programs of a host take its clock for one that is off."""

import subprocess
from pathlib import Path

SOURCE = """
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, clock, now);
    if (!failed && clock == CLOCK_REALTIME) now->tv_sec += AHEAD;
    return failed;
}

time_t time(time_t *seconds) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (seconds) *seconds = now.tv_sec;
    return now.tv_sec;
}

int gettimeofday(struct timeval *now, void *zone) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}
"""


def clock_ahead(seconds: int, folder: Path) -> Path:
    """The library, which LD_PRELOAD names, for a clock that is ahead by so much."""
    source, library = folder / "clock.c", folder / "clock.so"
    source.write_text(SOURCE)
    command = ["cc", "-shared", "-fPIC", f"-DAHEAD=({seconds})", "-o", str(library), str(source)]
    subprocess.run(command, check=True)
    return library
