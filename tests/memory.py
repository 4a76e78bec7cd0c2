"""How much memory this process has and had at most; with the settings by which that is what it needs."""

KEEPING_NONE = {
    "TF_ENABLE_ONEDNN_OPTS": "0",
    "MALLOC_MMAP_THRESHOLD_": "1000000",
}  # of what oneDNN and the C library keep


def megabytes(kind: str) -> float:
    """Of this process, what the system says."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith(kind))


def now() -> float:
    return megabytes("VmRSS")


def peak() -> float:
    """Since the process began or `forget_peak`."""
    return megabytes("VmHWM")


def forget_peak() -> None:
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
