"""Growth of `semcal monitor` and of the start of `semcal serve` with the number of replies in a log.

    python -m benchmarks long_log

Every third reply has a label, and its probability is one of the embedded calibration's labeled answers. CPU
seconds of one process: all watches of the log, and its start (opening and reading).
"""

from __future__ import annotations

import json
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from time import process_time
from typing import Any

from semcal.calibration.calibration import Calibration
from semcal.calibration.watch import PromiseWatch
from semcal.reply_log import ReplyLog

REPLIES = (10_000, 100_000, 1_000_000)
QUICK = {"REPLIES": (30,)}
#: The SQL of n replies and their labels; ids and subjects are in random order, as those of real replies.
NUMBERS = "WITH RECURSIVE numbers (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM numbers WHERE i < :n)"
FILL = f"""\
{NUMBERS} INSERT INTO replies
SELECT i, lower(hex(randomblob(16))), i, 'f00', '{{}}', 'paris', value, :threshold, 0, 'atlas', NULL, 0, NULL,
:calibration, random() FROM numbers JOIN probabilities ON probabilities.rowid = 1 + i * 7919 % :m
"""
LABEL = """\
INSERT INTO labels (id, correct, time, key, subject, audited)
SELECT id, (number * 7907 % 1000) / 1000.0 < probability, time, '', calibration || ' ' || content, 0
FROM replies WHERE number % 3 = 1 ORDER BY number
"""


def write_log(path: Path, calibration: Calibration, n: int) -> None:
    """Write a log with n replies of a calibration."""
    ReplyLog(path).close()
    p, threshold = calibration.labeled.probability, calibration.limit
    values = {"n": n, "p": json.dumps(p), "m": len(p), "threshold": threshold, "calibration": calibration.id}
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TEMP TABLE probabilities AS SELECT value FROM json_each(?)", [values["p"]])
        database.execute(FILL, values)
        database.execute(LABEL)


def seconds(job: Callable[[], object]) -> float:
    """Return the CPU seconds of a job."""
    start = process_time()
    job()
    return process_time() - start


def results() -> list[dict[str, Any]]:
    """Return a row for each number of replies."""
    calibration, rows = Calibration.from_pretrained("atlas"), []
    for n in REPLIES:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "log.sqlite"
            write_log(path, calibration, n)
            watch = PromiseWatch.of(calibration)

            def start(path: Path = path) -> None:
                watch = PromiseWatch.of(calibration)
                with closing(ReplyLog(path)) as log:
                    watch.read(log, (calibration.id,))

            def read(watch: PromiseWatch = watch, path: Path = path) -> None:
                with closing(ReplyLog(path, read_only=True)) as log:
                    watch.read(log, (calibration.id,))

            row = {"replies": n, "monitor, s": seconds(read), "start, s": seconds(start)}
            rows.append({**row, "labels": watch.last_label})
    return rows


if __name__ == "__main__":
    from benchmarks.__main__ import table

    print(table(results()))
