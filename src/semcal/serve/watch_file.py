"""The state of a watch in a file beside its log, so that a start need not read a long log again.

The state is that of a watch that only reads the log. It is used while the log has the same bytes, so a killed
server, an edited log or a damaged file only costs the time of reading.
"""

from __future__ import annotations

from contextlib import closing, suppress
from dataclasses import asdict
from pathlib import Path

from pydantic import TypeAdapter

from semcal import __version__
from semcal.calibration.calibration import Calibration
from semcal.calibration.fields import FieldCalibration
from semcal.calibration.watch import PromiseWatch
from semcal.errors import StoreError
from semcal.files import dumps, file_checksum, read_sealed, write_sealed
from semcal.reply_log import ReplyLog


def load_watch(calibration: Calibration | FieldCalibration, log: Path) -> PromiseWatch:
    """Return the watch as it was stored, or a new one if the log or the calibration changed since.

    Call it before this process opens the log, because closing a file drops the locks of its process.
    """
    watch, checksum = PromiseWatch.of(calibration), _checksum(log)
    content = read_sealed(watch_file(log)) if checksum else None
    if content is None or content.get("log") != checksum or content.get("of") != _origin(calibration):
        return watch
    return TypeAdapter(PromiseWatch).validate_json(str(content["watch"]))


def store_watch(watch: PromiseWatch, calibration: Calibration | FieldCalibration, log: Path) -> None:
    """Read what is new in a log since `load_watch`, and store the watch after this process closed the log.

    Nothing is stored if that fails, or while another process writes to the log.
    """
    with suppress(OSError, StoreError):
        with closing(ReplyLog(log, read_only=True)) as opened:
            watch.read(opened, (calibration.id,))
        if checksum := _checksum(log):
            content = {"log": checksum, "of": _origin(calibration), "watch": dumps(asdict(watch))}
            write_sealed(watch_file(log), content)


def watch_file(log: Path) -> Path:
    """Return the file for the watch of a log."""
    return log.with_name(f"{log.name}-watch.json")


def _origin(calibration: Calibration | FieldCalibration) -> str:
    """Return a text that identifies the watch on a calibration before any reply."""
    return dumps([__version__, calibration.id, asdict(PromiseWatch.of(calibration))])


def _checksum(log: Path) -> str | None:
    """Return the checksum of a log, None if it is missing or if some of its data is in another file."""
    others = [log.with_name(f"{log.name}-{name}") for name in ("wal", "journal")]
    if not log.is_file() or any(other.is_file() and other.stat().st_size for other in others):
        return None
    return file_checksum(log)
