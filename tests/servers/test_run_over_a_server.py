"""`semcal run` with a model behind a server, which it probes."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import mill_grid as mills
import pytest

from tests.cli.invoking import semcal as command
from tests.servers.fake_server import FakeServer

pytestmark = pytest.mark.filterwarnings("always::semcal.errors.SemcalWarning")


@pytest.mark.skipif(find_spec("torch") is None, reason="grids need PyTorch")
def test_the_command_asks_a_server_that_it_probes_and_keeps_the_key_to_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEMCAL_CACHE", str(tmp_path / "cache"))
    (tmp_path / "key").write_text("sk-secret\n")
    paths, sizes = mills.write_questions(tmp_path), {"calibration_train": 12, "validation": 9, "test": 11}
    with FakeServer(log_probs="scaled", key="sk-secret", refused=("barn 20?",)) as server:
        content = {
            "models": [{"name": "served", "path": server.name, "server": {"concurrency": 4}}],
            "datasets": [{"name": "barn", "source": paths["barn"], "few_shot": 1, **sizes}],
            "equivalence": "exact",
            "methods": ["Base", "SE", "ATS"],
            "runs": {"count": 1},
            "sampling": {"m": 4, "counts": []},
            "selection": {"measure_alphas": [0.5]},
            "extras": {"figure_files": False},
        }
        (tmp_path / "grid.yaml").write_text(json.dumps(content))
        call = ("run", tmp_path / "grid.yaml", "--out", tmp_path / "run", "--json")
        code, rows, stderr = command(*call, "--config", f"server.api_key_file={tmp_path / 'key'}")
        assert code in (0, 1), stderr
        assert rows[0]["complete"]
        assert rows[0]["problems"] == code
        assert stderr.count("served is behind a server, ") == 1
        assert "left out for it: ATS" in stderr
        code, _, stderr = command(*call)
        assert code == 1
        assert "SEMCAL_API_KEY" in stderr
    written = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "key"]
    assert not any(b"sk-secret" in path.read_bytes() for path in written)
