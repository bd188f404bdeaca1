"""Memory of this process and of its GPUs, read in microseconds.

On Linux the resident set size (RSS) and its high-water mark come from `/proc/self`, and the mark is
reset before each fixture, so that a peak below an earlier one is still seen. Elsewhere only the
high-water mark of `getrusage` exists: it never falls, so a peak counts only if it is a new maximum.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys

try:
    import resource
    from os import pread  # not on Windows either
    from resource import RUSAGE_SELF as SELF
    from resource import getrusage
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

KILOBYTE = 1 if sys.platform == "darwin" else 1024
"""Bytes in the unit of `ru_maxrss`: macOS counts bytes."""

PROC = "/proc/self"
"""Directory with `statm`, `status` and `clear_refs` of this process."""

HIGH_WATER = re.compile(rb"VmHWM:\s*(\d+) kB")
RSS = re.compile(rb"VmRSS:\s*(\d+) kB")
MAX_MARK = 100_000
"""Bytes by which a peak may be missed: most setups need no reset."""
MAX_USAGE_ERROR = 500_000
RESET_HIGH_WATER = b"5"  # see `clear_refs` in proc(5)


def read(path: str) -> bytes:
    """Contents of a small file of /proc."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(file, 4096)
    finally:
        os.close(file)


def peak_usage() -> int:
    """High-water mark of the RSS according to `getrusage`."""
    return getrusage(SELF).ru_maxrss * KILOBYTE


class Memory:
    """Readings of memory in bytes."""

    def __init__(self) -> None:
        self.last = (0, 0)
        self.statm_file = -1
        self.statm = f"{PROC}/statm"
        self.status = f"{PROC}/status"
        self.clear_refs = f"{PROC}/clear_refs"
        try:
            self.page_bytes = os.sysconf("SC_PAGE_SIZE")
            self.has_rss = self.read_rss() > 0 and HIGH_WATER.search(read(self.status)) is not None
        except (OSError, ValueError, IndexError, AttributeError):
            self.has_rss = False
        self.resets_peak = self.has_rss and self.reset_peak()
        self.lowest_usage = self._lowest_usage()

    def _lowest_usage(self) -> int | None:
        """The RSS from which on `getrusage` has the high-water mark of `status`, in a tenth of the
        time; None if it does not. After a reset it has the larger of that mark and a constant: the
        peak before this program was started in the process, often that of the shell.
        """
        if resource is None or not self.resets_peak:
            return None
        rss = self.read_rss()
        is_near = abs(peak_usage() - rss) < MAX_USAGE_ERROR
        return rss if is_near else None

    @property
    def has_peak(self) -> bool:
        """Whether this system reports a high-water mark."""
        return self.has_rss or resource is not None

    @property
    def source(self) -> str:
        """The origin of the numbers, for the report."""
        if self.resets_peak:
            return "/proc, peak reset before each setup"
        if self.has_rss:
            return "/proc, peak counts only as a new maximum of the process"
        return "getrusage, peak counts only as a new maximum of the process" if self.has_peak else "none"

    def read_rss(self) -> int:
        """Resident set size; only on systems with `has_rss`.

        The file stays open, which saves two system calls. If a test has closed it, the read fails or
        has other contents, and the file is opened again.
        """
        try:
            return int(os.pread(self.statm_file, 128, 0).split(None, 2)[1]) * self.page_bytes
        except (OSError, ValueError, IndexError):
            self.statm_file = os.open(self.statm, os.O_RDONLY | os.O_CLOEXEC)
            return int(os.pread(self.statm_file, 128, 0).split(None, 2)[1]) * self.page_bytes

    def reset_peak(self) -> bool:
        """Lowers the high-water mark to the present RSS; returns whether the system can."""
        try:
            file = os.open(self.clear_refs, os.O_WRONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            os.write(file, RESET_HIGH_WATER)
        except OSError:
            return False
        finally:
            os.close(file)
        return True

    def start(self) -> tuple[int, int]:
        """Begins a measurement: the present level and high-water mark, which is lowered if it is much
        above the level.
        """
        level, mark = self.level_and_peak()
        if mark - level > MAX_MARK and self.resets_peak and self.reset_peak():
            return self.level_and_peak()
        return level, mark

    def level_and_peak(self) -> tuple[int, int]:
        """The present level and high-water mark. Without an RSS, the level is the mark itself.

        If a test has used up all file descriptors, this repeats the last reading.
        """
        lowest = self.lowest_usage
        if lowest is not None:
            # The usual case without further calls: this runs twice for each fixture.
            try:
                rss = int(pread(self.statm_file, 128, 0).split(None, 2)[1]) * self.page_bytes
            except (OSError, ValueError, IndexError):  # a test has closed the file
                rss = 0
            if rss >= lowest:
                self.last = rss, max(rss, getrusage(SELF).ru_maxrss * KILOBYTE)
                return self.last
        with contextlib.suppress(OSError):
            self.last = self._read_both()
        return self.last

    def _read_both(self) -> tuple[int, int]:
        if self.has_rss:
            if self.lowest_usage is not None:
                rss = self.read_rss()
                if rss >= self.lowest_usage:
                    return rss, max(rss, peak_usage())
            status = read(self.status)
            found, peak = RSS.search(status), HIGH_WATER.search(status)
            return (int(found[1]) * 1024, int(peak[1]) * 1024) if found and peak else self.last
        if resource is None:
            return 0, 0
        mark = peak_usage()
        return mark, mark


def gpu_bytes() -> int | None:
    """Memory of all tensors on CUDA devices, or None if this process has not started CUDA.

    Only looks at a torch that is already imported: importing torch, or starting CUDA, would change
    the session that is measured.
    """
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    try:
        if cuda is None or not cuda.is_initialized():
            return None
        return int(sum(cuda.memory_allocated(device) for device in range(cuda.device_count())))
    except Exception:  # a module that only pretends to be torch, as tests install
        return None


def gpu_name() -> str | None:
    """Name of the first CUDA device, or None if this process has not started CUDA."""
    try:
        return None if gpu_bytes() is None else str(sys.modules["torch"].cuda.get_device_name(0))
    except Exception:  # as above
        return None
